"""The memory panel as a person uses it: the built notebook, in JupyterLab, in a browser."""

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import nbformat
import pytest

from tests.conftest import ROOT

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(
    not CHROMIUM, reason="there is no chromium; Debian's is installed by .ci/run"
)
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
CONTROLS = [
    "Workload", "Card", "Effective batch", "Precision", "Roots", "Facts", "Use this plan",
]  # fmt: skip
SECONDS = 90  # for one answer: a plan takes 2 to 12 of them on an idle machine
FOCUSED = """() => {
    const shown = document.activeElement, style = getComputedStyle(shown);
    const label = shown.closest(".widget-inline-hbox, .jupyter-widget-inline-hbox")?.querySelector("label");
    const looks = [style.outlineStyle !== "none" && style.outlineWidth !== "0px", style.boxShadow !== "none"];
    const border = style.borderColor !== getComputedStyle(document.body).borderColor;
    return [(label || shown).textContent.trim(), looks.some(Boolean) || border];
}"""
RUN_ALL = """async () => {
    const shown = window.jupyterapp.shell.currentWidget;
    await shown.context.ready;
    await shown.sessionContext.ready;
    await shown.sessionContext.session.kernel.info;
    await window.jupyterapp.commands.execute("notebook:run-all-cells");
}"""


@pytest.fixture
def notebook(tmp_path):
    """A folder of its own with the built notebook up to its panel, which begins with the small size."""
    book = nbformat.read(ROOT / "notebooks" / "00_memory.ipynb", 4)
    panel = next(
        place for place, cell in enumerate(book.cells) if cell.source.startswith("panel.show")
    )
    del book.cells[panel + 1 :]  # another model's plan: test_notebooks.py
    cell = next(cell for cell in book.cells if "parameters" in cell.metadata.get("tags", []))
    cell.source += '\nCONFIG = "graphmer_small"'
    (tmp_path / "book").mkdir()
    nbformat.write(book, tmp_path / "book" / "00_memory.ipynb")
    return tmp_path / "book" / "00_memory.ipynb"


@contextmanager
def jupyterlab(folder, scratch, file="00_memory.ipynb", settings=None):
    """JupyterLab over a folder, with no settings but these; gives the address of one notebook alone, with the token."""
    token = secrets.token_hex(16)
    places = {f"JUPYTER_{name}_DIR": str(scratch / name) for name in ("CONFIG", "DATA", "RUNTIME")}
    places |= {
        "JUPYTERLAB_SETTINGS_DIR": str(scratch / "settings"),
        "IPYTHONDIR": str(scratch / "ipython"),
    }
    silent = {"@jupyterlab/apputils-extension/notification": '{"fetchNews": "false"}'}
    for plugin, text in (silent | (settings or {})).items():
        path = scratch / "settings" / f"{plugin}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with (
        socket.socket() as probe
    ):  # for a free port, and not 0: jupyter_server 2.12 writes down the 0 it was given
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = [
        f"--IdentityProvider.token={token}",
        f"--ServerApp.root_dir={folder}",
        f"--ServerApp.port={port}",
    ]
    options += [
        "--no-browser",
        "--allow-root",
        "--ServerApp.ip=127.0.0.1",
        "--LabApp.expose_app_in_browser=True",
    ]
    with (scratch / "lab.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options],
            env={**os.environ, **places},
            stdout=log,
            stderr=log,
        )
        try:
            yield f"{_address(scratch / 'RUNTIME', server)}doc/tree/{file}?token={token}"
        finally:
            server.terminate()
            server.wait(30)


def _address(runtime, server):
    """The server's address, as it writes it down when it is ready."""
    for _ in range(300):
        for found in runtime.glob("jpserver-*.json"):
            url = json.loads(found.read_text())["url"]
            with contextlib.suppress(
                urllib.error.URLError
            ):  # it writes this down before it listens
                urllib.request.urlopen(f"{url}login", timeout=30).close()
                return url
        assert server.poll() is None, "JupyterLab ended; see lab.log"
        time.sleep(0.2)
    raise AssertionError("JupyterLab did not start within a minute; see lab.log")


@contextmanager
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@contextmanager
def page_of(address):
    with browser() as chromium:
        page = chromium.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(1000 * SECONDS)
        page.goto(address)
        page.wait_for_function("window.jupyterapp?.shell?.currentWidget?.context")
        yield page


class Shown:
    """The panel on the page."""

    def __init__(self, page):
        self.box = page.locator(".jp-OutputArea-child", has=page.locator(".widget-slider"))
        self.bar = self.box.get_by_role("img")

    def wait_for(self, text):
        self.box.get_by_text(text).first.wait_for()
        self.box.get_by_text("Planning").wait_for(state="detached")

    def width(self):
        """The pixels of the pieces of the bar."""
        return self.bar.evaluate(
            "bar => [...bar.children].reduce((sum, piece) => sum + piece.getBoundingClientRect().width, 0)"
        )

    def cut(self):
        """What of the panel lies outside of the window, by its text, and cannot be scrolled to either."""
        return self.box.evaluate("""box => [...box.querySelectorAll("*")].filter(one => {
            const place = one.getBoundingClientRect();
            const is_folded = one.closest("details:not([open])"), scrolls = one.closest('[style*="overflow-x:auto"] *');
            return place.width && !is_folded && !scrolls && (place.left < 0 || place.right > window.innerWidth);
        }).map(one => one.textContent)""")


def test_a_person_opens_the_panel_moves_a_slider_changes_the_card_and_uses_the_plan(
    notebook, tmp_path
):
    from playwright.sync_api import expect

    with jupyterlab(notebook.parent, tmp_path) as address, page_of(address) as page:
        page.evaluate(RUN_ALL)
        shown = Shown(page)
        shown.wait_for("graphmer_small fits on 2 x T4")
        first = shown.width()
        says = shown.bar.get_attribute("aria-label")

        for width in (700, 1400):  # of the window; a person may also have no mouse
            page.set_viewport_size({"width": width, "height": 1000})
            assert shown.cut() == []
        shown.box.get_by_label("Workload", exact=True).focus()
        reached = []
        for _ in range(len(CONTROLS) + 3):  # a slider has two stops: its handle and its number
            label, is_seen = page.evaluate(FOCUSED)
            assert is_seen, f"the focus on {label}"
            reached.append(label)
            page.keyboard.press("Tab")
        assert list(dict.fromkeys(reached)) == CONTROLS, (
            "Tab goes from control to control as they stand"
        )

        handle = shown.box.locator(".widget-slider", has_text="Roots").locator(
            ".noUi-handle, .ui-slider-handle"
        )
        handle.focus()
        handle.press("ArrowRight")
        expect(shown.bar).not_to_have_attribute("aria-label", says, timeout=1000 * SECONDS)
        second = shown.width()
        assert second > 1.05 * first, "longer samples take more"
        shown.box.get_by_label("Card", exact=True).select_option(label="RTX 3050 8 GB, 7.6 GiB")
        shown.wait_for("graphmer_small fits on RTX 3050 8 GB")
        assert shown.width() > 1.5 * second, "the same run is a larger part of a smaller card"
        assert not list(notebook.parent.rglob("plan-*.json"))
        shown.box.get_by_role("button", name="Use this plan").click()
        shown.wait_for("Written to")
        line = shown.box.get_by_text("OVERRIDES = {").inner_text()
        file = notebook.parent / "runs" / "plan-graphmer_small.json"
        written = json.loads(file.read_text())
        assert written["workload.chain.roots"] == 96
        assert eval(line.removeprefix("OVERRIDES = ")) == written
