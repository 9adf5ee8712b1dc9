"""Installs the packages that a notebook needs. Imports only the standard library, so that it can always run."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterable, Mapping

from lib.errors import BadInput

# Name of the import -> name for pip. torch is never installed: that would replace the platform's CUDA build.
PACKAGES = {
    "torch": "", "numpy": "numpy", "yaml": "PyYAML", "safetensors": "safetensors", "tokenizers": "tokenizers",
    "psutil": "psutil", "cloudpickle": "cloudpickle", "matplotlib": "matplotlib", "ipywidgets": "ipywidgets",
    "jinja2": "Jinja2",
}  # fmt: skip
# Imports of users' tasks with another name than pip's. "": bound to the build of torch, never installed.
PROJECTS = {
    "torchvision": "", "torchaudio": "", "PIL": "pillow", "cv2": "opencv-python-headless", "skimage": "scikit-image",
    "sklearn": "scikit-learn", "pynvml": "nvidia-ml-py", "IPython": "ipython", "bs4": "beautifulsoup4",
    "segmentation_models_pytorch": "segmentation-models-pytorch", "sentence_transformers": "sentence-transformers",
    "dateutil": "python-dateutil", "dotenv": "python-dotenv", "imblearn": "imbalanced-learn", "osgeo": "GDAL",
}  # fmt: skip

# The range that lib works with, as in pyproject.toml, which a notebook does not carry.
PYTHON = ((3, 11), (3, 13))
OLDEST = {
    "torch": "2.10", "numpy": "2.0", "PyYAML": "6.0", "safetensors": "0.5", "tokenizers": "0.21", "psutil": "5.9",
    "cloudpickle": "2.2", "matplotlib": "3.8", "ipywidgets": "7.7", "Jinja2": "3.1", "pillow": "10",
    "rasterio": "1.3", "transformers": "5", "pandas": "2.2", "scipy": "1.11", "scikit-learn": "1.4",
    "peft": "0.19", "accelerate": "1.13", "nvidia-ml-py": "12",
}  # fmt: skip


def project_of(name: str) -> str:
    """Returns pip's name of an import's package; "" if it is never installed."""
    return PACKAGES.get(name, PROJECTS.get(name, name))


def with_own(names: Iterable[str]) -> dict[str, str]:
    """Returns the packages of lib and of these imports, with pip's names."""
    return {name: project_of(name) for name in names} | PACKAGES


def how_to_get(error: ModuleNotFoundError) -> str:
    """Returns how to install a missing package of the library; raises the error again for any other."""
    name = (error.name or "").partition(".")[0]
    if name not in PACKAGES:
        raise error
    return (
        f"{sys.executable} has no package {name}. In a checkout, `make train` makes an environment with all, and "
        "`. .venv/bin/activate` makes `python` that one. Without make: pip install -r requirements/run.txt."
    )


def ensure(packages: Mapping[str, str] = PACKAGES) -> str:
    """Installs missing packages; returns one line about all. Raises BadInput if that fails."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if bound := [name for name in missing if not packages[name]]:
        raise BadInput(
            f"{' and '.join(bound)} is missing, and this notebook never installs it: the platform's build of PyTorch "
            "fits its GPU driver. On Kaggle and Colab choose the standard image; elsewhere follow pytorch.org."
        )
    if missing:
        projects = [packages[name] for name in missing]
        print(f"Installing {', '.join(projects)} ...", flush=True)
        # Without internet it fails after seconds, not after pip's five retries.
        options = ["--quiet", "--retries", "1", "--timeout", "5"]
        command = [sys.executable, "-m", "pip", "install", *options, *projects]
        if subprocess.run(command, check=False).returncode:
            raise BadInput(
                f"Missing packages that could not be installed: {', '.join(projects)}. Switch the internet on (Kaggle: "
                "Settings > Internet), or add a data set with their wheels and pip install them from there."
            )
        importlib.invalidate_caches()
    if missing:
        return f"{len(packages)} packages are there; installed now: {', '.join(missing)}."
    return f"{len(packages)} packages are there."
