"""Pictures of the notebooks after a real run: wide and narrow, in the light and the dark theme of JupyterLab.

    python -m tests.notebooks.pictures [NAME ...] [--quick]       `make pictures NOTEBOOKS="00_memory 07_your_model"`
    python -m tests.notebooks.pictures --front                    those of the documents, in docs/pictures
    python -m tests.notebooks.pictures --pages [--nbconvert PYTHON]    nbconvert's pages of notebooks/ as they are

Each notebook is built as its source is now, and run in JupyterLab in an empty folder, without a GPU with its small size
(minutes each; --quick: with the few steps of the tests). The pictures are in runs/pictures, as NAME-1400-light.png;
those of pages have the version and the template in their names. Kaggle shows versions with nbconvert 6.4.5: give the
Python of an environment that has it, such as that of `make kaggle-image`.
"""

import argparse
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
from PIL import Image

from build_notebooks import notebook_text
from tests.conftest import ROOT
from tests.notebooks.test_browser import RUN_ALL, browser, jupyterlab, page_of
from tests.notebooks.test_notebooks import PARAMETERS

FOLDER = ROOT / "runs" / "pictures"
SOURCES = ROOT / "notebooks_src"
WIDTHS = (1400, 700)
PAGES = (
    ("lab", "light"),
    ("lab", "dark"),
    ("classic", "light"),
)  # nbconvert's templates with their themes
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
FRONT = {  # notebook: what the output in a document has in it, the picture's file, the window's width
    "00_memory": (".widget-slider", "panel.png", 1400),
}
HIGHEST = 16_000  # pixels of a page that Chromium draws at once
# else the cells in sight alone are drawn
SETTINGS = {"@jupyterlab/notebook-extension/tracker": '{"windowingMode": "none"}'}
IS_WHOLE = """() => {
    const cells = window.jupyterapp.shell.currentWidget.content.widgets.filter(cell => cell.model.type === "code");
    return Boolean(cells[cells.length - 1].model.executionCount);
}"""
THEME = "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})"
# The height of the page's frame and the whole notebook; a notebook that was run is scrolled to its end.
HEIGHT = """() => {
    const shown = document.querySelector(".jp-WindowedPanel-outer");
    shown.scrollTop = 0;
    return Math.ceil(shown.getBoundingClientRect().top + shown.scrollHeight);
}"""


def main(arguments: list[str] | None = None) -> int:
    known = sorted(path.stem for path in SOURCES.glob("[0-9]*.py"))
    parser = argparse.ArgumentParser(
        prog="python -m tests.notebooks.pictures", description=__doc__.partition("\n")[0]
    )
    # [] is what argparse takes for no name at all
    parser.add_argument(
        "names", nargs="*", metavar="NAME", choices=[[], *known], help=f"of {', '.join(known)}"
    )
    parser.add_argument(
        "--quick", action="store_true", help="train with the few steps of the tests"
    )
    parser.add_argument(
        "--front", action="store_true", help=f"the outputs in documents, of {' and '.join(FRONT)}"
    )
    parser.add_argument(
        "--pages", action="store_true", help="nbconvert's pages of the built notebooks"
    )
    parser.add_argument(
        "--nbconvert",
        metavar="PYTHON",
        default=sys.executable,
        help="whose nbconvert makes the pages",
    )
    given = parser.parse_args(arguments)
    if given.front:
        names = [name for name in FRONT if name in (given.names or FRONT)]
    else:
        names = given.names or known
    FOLDER.mkdir(parents=True, exist_ok=True)
    if given.pages:
        draw_pages(names, given.nbconvert)
        return 0
    os.environ.setdefault("TRAINBOOK_CACHE", str(FOLDER / "cache"))
    ended = {
        name: take(name, PARAMETERS[name] if given.quick else {}, given.front) for name in names
    }
    if stopped := [name for name, is_whole in ended.items() if not is_whole]:
        print(f"Not every cell ran in: {', '.join(stopped)}. Their pictures show why.")
    return int(bool(stopped))


def take(name: str, parameters: dict, for_front: bool = False) -> bool:
    """Runs a notebook and takes its pictures, or that of a document; returns whether its last cell has run."""
    text = with_parameters(notebook_text(SOURCES / f"{name}.py"), parameters)
    with tempfile.TemporaryDirectory() as scratch:
        book = Path(scratch, "book", f"{name}.ipynb")
        book.parent.mkdir()
        book.write_text(text, "utf-8")
        with (
            jupyterlab(book.parent, Path(scratch, "lab"), book.name, SETTINGS) as address,
            page_of(address) as page,
        ):
            page.evaluate(RUN_ALL)
            page.get_by_text("Planning").wait_for(
                state="detached"
            )  # which the panel does in a thread
            draw_one(page, *FRONT[name]) if for_front else draw(page, name)
            return page.evaluate(IS_WHOLE)


def with_parameters(text: str, parameters: dict) -> str:
    """Returns a notebook with assignments at the end of its parameters cell."""
    book = nbformat.reads(text, 4)
    cell = next(cell for cell in book.cells if "parameters" in cell.metadata.get("tags", []))
    cell.source += "".join(f"\n{name} = {value!r}" for name, value in parameters.items())
    return nbformat.writes(book)


def draw_one(page, inside: str, file: str, width: int) -> None:
    """Writes the picture of one output into docs/pictures."""
    output = page.locator(".jp-OutputArea-output", has=page.locator(inside)).first
    page.set_viewport_size({"width": width, "height": 1000})
    output.scroll_into_view_if_needed()
    page.wait_for_timeout(1500)
    target = ROOT / "docs" / "pictures" / file
    with Image.open(io.BytesIO(output.screenshot())) as picture:
        picture.convert("RGB").quantize(256).save(target, optimize=True)
    print(f"wrote {target.relative_to(ROOT)} ({target.stat().st_size:,} bytes)", flush=True)


def draw(page, name: str) -> None:
    """Writes the page's pictures, each as high as the notebook is."""
    for theme, title in THEMES.items():
        page.evaluate(THEME, title)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 1000})
            page.wait_for_timeout(
                1500
            )  # milliseconds, in which the theme and the wrapped lines settle
            page.set_viewport_size({"width": width, "height": min(HIGHEST, page.evaluate(HEIGHT))})
            page.wait_for_timeout(1500)
            page.evaluate(HEIGHT)
            target = FOLDER / f"{name}-{width}-{theme}.png"
            page.screenshot(path=target)
            print(f"wrote {target.relative_to(ROOT)}", flush=True)


def draw_pages(names: list[str], python: str) -> None:
    """Writes pictures of nbconvert's pages, without the network; what they would load from there is left out."""
    command = [python, "-m", "nbconvert"]
    version = subprocess.run(
        [*command, "--version"], check=True, capture_output=True, text=True
    ).stdout.strip()
    with tempfile.TemporaryDirectory() as scratch, browser() as chromium:
        page = chromium.new_page()
        page.route("http*://**", lambda route: route.abort())
        for name in names:
            for template, theme in PAGES:
                made = [
                    "--to=html",
                    f"--template={template}",
                    f"--output-dir={scratch}",
                    "--log-level=ERROR",
                ]
                made += [f"--theme={theme}"] * (template == "lab")
                subprocess.run(
                    [*command, *made, str(ROOT / "notebooks" / f"{name}.ipynb")], check=True
                )
                for width in WIDTHS:
                    page.set_viewport_size({"width": width, "height": 1000})
                    page.goto(Path(scratch, f"{name}.html").as_uri())
                    target = FOLDER / f"{name}-{width}-{theme}-nbconvert-{version}-{template}.png"
                    page.screenshot(path=target, full_page=True)
                    print(f"wrote {target.relative_to(ROOT)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
