"""Interactive cells, of core widgets only; without widgets or a live kernel the same cell prints the same answer."""

from html import escape
from importlib.util import find_spec
from typing import Any

from lib.machine import memory, platform
from lib.planner import file


def live() -> bool:
    """Returns whether widgets work here: in a notebook that a person runs, with ipywidgets installed."""
    return platform.in_notebook() and not platform.detect().batch and find_spec("ipywidgets") is not None


def show_live(widget: Any, otherwise: str) -> None:
    """Shows a widget; where there is no kernel, as in an exported page, the text `otherwise`."""
    from IPython.display import display

    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    display({"application/vnd.jupyter.widget-view+json": view, "text/plain": otherwise}, raw=True)


def code(overrides: dict[str, Any]) -> str:
    """Returns the line to paste, as HTML that one click selects."""
    return (
        '<pre style="user-select:all;-webkit-user-select:all;white-space:pre-wrap;border:1px solid #888;'
        'border-radius:3px;padding:6px 8px;margin:4px 0;line-height:18px;font-size:12px">'
        f"{escape(file.as_code(overrides))}</pre>"
    )


def memory_panel() -> Any:
    """Prints the memory in use; with a live kernel, returns a button to measure again and one to free memory."""
    text = memory.check_memory()
    print(text)
    if not live():
        return None
    import ipywidgets

    check = ipywidgets.Button(description="Check memory", button_style="info")
    clear = ipywidgets.Button(description="Clear memory")
    readings = ipywidgets.Textarea("", disabled=True, rows=text.count("\n") + 2, layout={"width": "100%"})
    readings.layout.display = "none"  # until there is something newer than the printed text

    def on_check(_: Any) -> None:
        readings.value = memory.check_memory()
        readings.layout.display = ""

    check.on_click(on_check)
    clear.on_click(lambda _: memory.clear_memory())
    clear.on_click(on_check)  # which is called second
    return ipywidgets.VBox([ipywidgets.HBox([check, clear]), readings])
