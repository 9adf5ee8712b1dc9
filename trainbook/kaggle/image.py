"""The packages that Kaggle's notebook image has and lacks. The list changes with every release of the image."""

from dataclasses import dataclass

_SURVEY = "the project's survey of the image"
_REQUIREMENTS = "github.com/Kaggle/docker-python, kaggle_requirements.txt"
_BASE = "Colab's base image, on which Kaggle builds (docker-python #1433, #1466)"
_LISTED = f"{_REQUIREMENTS}, a version of late 2025"
_FROZEN = (
    "Colab's base image, on which Kaggle builds: github.com/googlecolab/backend-info, pip-freeze.gpu.txt of 2026-06"
)


@dataclass(frozen=True)
class Package:
    """A package of the image: `version` is "" where it was not noted, None where the package is absent."""

    version: str | None
    source: str
    checked: str = "2026-10"


# Versions of the base image; "" where Kaggle puts another one in its place: with its own torch, or by its list.
_OF_COLAB = {
    "torchvision": "", "torchaudio": "", "accelerate": "1.13.0", "bs4": "4.13.5", "cv2": "4.13.0.92",
    "datasets": "4.0.0", "diffusers": "0.37.1", "einops": "0.8.2", "fastai": "2.8.7", "gymnasium": "1.3.0",
    "h5py": "3.16.0", "huggingface_hub": "1.17.0", "imageio": "2.37.3", "imblearn": "0.14.1", "joblib": "1.5.3",
    "librosa": "0.11.0", "lightgbm": "4.6.0", "networkx": "3.6.1", "nibabel": "5.4.2", "nltk": "3.9.1",
    "numba": "0.60.0", "omegaconf": "2.3.0", "openpyxl": "3.1.5", "peft": "0.19.1", "plotly": "5.24.1",
    "polars": "1.35.2", "pyarrow": "18.1.0", "pycocotools": "2.0.11", "pywt": "1.9.0", "regex": "2025.11.3",
    "requests": "2.32.4", "seaborn": "", "sentence_transformers": "5.5.1", "sentencepiece": "0.2.1",
    "skimage": "0.25.2", "soundfile": "0.13.1", "spacy": "3.8.14", "statsmodels": "0.14.6", "sympy": "1.14.0",
    "tensorboard": "2.20.0", "tiktoken": "0.13.0", "tifffile": "2026.4.11", "tqdm": "4.67.3", "wandb": "0.27.0",
    "xarray": "2025.12.0", "xgboost": "", "xxhash": "3.7.0", "zstandard": "0.25.0",
}  # fmt: skip
_OF_KAGGLE = (
    "catboost", "category_encoders", "easyocr", "fasttext", "gensim", "geopandas", "kornia", "onnx", "optuna",
    "ignite", "ray", "segment_anything", "shap", "shapely", "SimpleITK", "torchinfo", "openslide", "nilearn", "pydicom",
)  # fmt: skip

PACKAGES: dict[str, Package] = {
    "torch": Package("2.10+cu128", _SURVEY),
    "numpy": Package("2", _SURVEY),
    "yaml": Package("", _BASE),
    "matplotlib": Package("", f"{_REQUIREMENTS}; a version of 2025 held it below 3.8"),
    "IPython": Package("", _BASE),
    "safetensors": Package("", _SURVEY),
    "tokenizers": Package("", "a dependency of transformers"),
    "transformers": Package("5", _SURVEY),
    "timm": Package("", _SURVEY),
    "albumentations": Package("", _SURVEY),
    "rasterio": Package("", _SURVEY),
    "scipy": Package("", "a dependency of scikit-learn"),
    "cloudpickle": Package("", _BASE),
    "jinja2": Package("", "a dependency of torch"),
    "PIL": Package("", _BASE),
    "pandas": Package("", _BASE),
    "sklearn": Package("", _SURVEY),
    "psutil": Package("", _SURVEY),
    "pydantic": Package("", _SURVEY),
    "jupytext": Package("", _SURVEY),
    "papermill": Package("", _SURVEY),
    "ipywidgets": Package("8.1.5", _SURVEY),
    "nbconvert": Package("6.4.5", _SURVEY),
    "pynvml": Package("", f"{_SURVEY}: nvidia-ml-py"),
    "pytorch_lightning": Package("", _SURVEY),
    "torchmetrics": Package("", _SURVEY),
    "kaggle": Package("", _REQUIREMENTS),
    # What people's own tasks import
    **{name: Package(version, _FROZEN, "2026-11") for name, version in _OF_COLAB.items()},
    **{name: Package("", _LISTED, "2026-11") for name in _OF_KAGGLE},
    "segmentation_models_pytorch": Package(None, _SURVEY),
    "bitsandbytes": Package(None, _SURVEY),
    "trl": Package(None, _SURVEY),
    "flash_attn": Package(None, _SURVEY),
}
