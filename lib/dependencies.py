"""Are the packages there that a notebook needs? Imports only the standard library, so that it can always answer."""

import importlib.util
import socket
import subprocess
import sys
from collections.abc import Mapping

from lib.errors import BadInput

# What is imported -> what pip installs. torch is never installed: that would replace the platform's CUDA build.
PACKAGES = {
    "torch": "",
    "numpy": "numpy",
    "yaml": "PyYAML",
    "safetensors": "safetensors",
    "tokenizers": "tokenizers",
    "psutil": "psutil",
    "matplotlib": "matplotlib",
    "ipywidgets": "ipywidgets",
}


def ensure(packages: Mapping[str, str] = PACKAGES) -> str:
    """Installs what is missing where there is internet; returns one line on what is there.

    Raises BadInput that names what is missing where it cannot be installed.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if "torch" in missing:
        raise BadInput(
            "PyTorch is missing, and this notebook never installs it: the platform's own build fits its GPU driver. "
            "On Kaggle and Colab choose the standard image; elsewhere install it by the steps on pytorch.org."
        )
    if missing:
        _install([packages[name] for name in missing])
    return f"{len(packages)} packages are there" + (f"; installed now: {', '.join(missing)}." if missing else ".")


def _install(projects: list[str]) -> None:
    if not has_internet():
        raise BadInput(
            f"Missing packages: {', '.join(projects)}. There is no internet to install them from: switch it on "
            "(Kaggle: Settings > Internet), or add a data set with their wheels and pip install them from there."
        )
    print(f"Installing {', '.join(projects)} ...", flush=True)
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *projects], check=True)
    importlib.invalidate_caches()


def has_internet(host: str = "pypi.org", seconds: float = 3.0) -> bool:
    """Whether a connection to the package index opens."""
    try:
        with socket.create_connection((host, 443), timeout=seconds):
            return True
    except OSError:
        return False
