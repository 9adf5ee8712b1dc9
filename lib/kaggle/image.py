"""The packages that Kaggle's notebook image has and lacks. The list changes with every release of the image."""

from dataclasses import dataclass

_SURVEY = "the project's survey of the image"
_REQUIREMENTS = "github.com/Kaggle/docker-python, kaggle_requirements.txt"
_BASE = "Colab's base image, on which Kaggle builds (docker-python #1433, #1466)"


@dataclass(frozen=True)
class Package:
    """A package of the image: `version` is "" where it was not noted, None where the package is absent."""

    version: str | None
    source: str
    checked: str = "2026-10"


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
    "segmentation_models_pytorch": Package(None, _SURVEY),
    "bitsandbytes": Package(None, _SURVEY),
    "trl": Package(None, _SURVEY),
    "flash_attn": Package(None, _SURVEY),
}
