"""The same by hand: what to click on kaggle.com, for whoever has no API token."""

from collections.abc import Sequence
from pathlib import Path

from trainbook.kaggle.kernel import Notebook, uses_gpu, uses_internet


def numbered(title: str, steps: Sequence[str]) -> str:
    """Returns steps as numbered lines below a title."""
    return "\n".join([title, *(f"  {number}. {step}" for number, step in enumerate(steps, 1))])


def push_by_hand(notebook: Notebook, file: Path, own_output: bool) -> str:
    """Returns the clicks that do what a push does with the prepared `file`."""
    inputs = [f"Datasets > {name}" for name in notebook.datasets]
    inputs += [f"Notebooks > {name}" for name in notebook.kernels]
    inputs += [f"Models > {name}" for name in notebook.models]
    inputs += [f"Your Work > Notebooks > {notebook.kernel}"] if own_output else []
    accelerator = "GPU T4 x2" if uses_gpu(notebook) else "None"
    steps = [
        f"kaggle.com > Create > New Notebook > File > Import Notebook, and choose {file}",
        f"Settings > Accelerator > {accelerator}, and Internet {'on' if uses_internet(notebook) else 'off'}",
        *(f"Add Input > {name}" for name in inputs),
        "Save Version > Save & Run All (Commit)",
    ]
    return numbered("Without an API token, in the browser:", steps)


def upload_by_hand(archive: Path, title: str, dataset: str) -> str:
    """Returns the clicks that upload a packed archive as a data set."""
    steps = [
        f"kaggle.com > Create > New Dataset, and drop {archive} onto the page",
        f"Give it the title {title!r}, so that its address ends with {dataset.partition('/')[2]}",
        "Choose the licence, and Create",
    ]
    return numbered("Without an API token, in the browser:", steps)


def mount_by_hand(dataset: str) -> str:
    """Returns the clicks that train on an uploaded data set."""
    return f"In the browser: open the notebook, Add Input > Your Datasets > {dataset}, then Save Version."
