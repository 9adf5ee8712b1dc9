"""What the cells of a built notebook showed when it was run: the page that a visitor sees before running anything."""

import base64
import io
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from lib.text import as_html
from trainbook.notebooks.source import libraries

Shown = dict[tuple[str, str], dict[str, Any]]  # (id, source) of a cell -> its outputs and their number
BASES = [*(Path(__file__).parents[2] / "configs").glob("*-base")]  # small models that a run finds beside it, as mounted
_COLOURS = 32  # of a picture: a plot looks the same, in half of the bytes
_MOST_HTML = 30_000  # characters; a page that needs more is shown as its text


def execute(text: str, name: str) -> str:
    """Returns the text of a notebook after a run in an empty folder, without a GPU and away from any checkout."""
    import papermill

    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "TRAINBOOK_CACHE": f"{tempfile.gettempdir()}/trainbook-cache"}
    with tempfile.TemporaryDirectory(prefix="trainbook-run-") as folder:
        for base in BASES:
            shutil.copytree(base, Path(folder) / base.name)
        path = Path(folder) / f"{name}.ipynb"
        path.write_text(text, encoding="utf-8")
        papermill.execute_notebook(path, path, cwd=folder, progress_bar=True)
        notebook = libraries()[1].reads(path.read_text(encoding="utf-8").replace(f"{folder}/", ""), as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [shown for output in cell.outputs if (shown := _shown(output))]
    return libraries()[1].writes(notebook)


def of(text: str) -> Shown:
    """Returns what each cell of a notebook shows; an empty or damaged text shows nothing."""
    try:
        cells = libraries()[1].reads(text, as_version=4).cells
    except Exception:  # whatever nbformat raises: the build replaces such a file
        return {}
    run = [cell for cell in cells if cell.cell_type == "code" and cell.get("outputs")]
    return {(cell.id, cell.source): {"outputs": cell.outputs, "execution_count": cell.execution_count} for cell in run}


def _shown(output: Any) -> Any:
    """Returns an output as a page can show it, or None: no widget and no bar, which need a kernel; small pictures."""
    if output.output_type == "stream":
        return output if output.name == "stdout" else None
    if output.output_type == "error":
        return None
    data, is_widget = output.data, any("widget" in mime for mime in output.data)
    is_bar = output.output_type == "display_data" and data.keys() <= {"text/plain"}
    page = data.get("text/html", "")
    if "<svg" in page or len(page) > _MOST_HTML:  # GitHub draws no SVG in a notebook, and leaves out styles
        data["text/html"] = as_html(data.get("text/plain", ""))
    if data.get("text/html"):
        data.pop("text/plain", None)  # which no page shows beside it
    if "image/png" in data:
        data["image/png"] = _small(data["image/png"])
    return None if is_widget or is_bar or not any(data.values()) else output


def _small(png: str) -> str:
    picture, file = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB"), io.BytesIO()
    picture.quantize(_COLOURS, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode("ascii")
