"""Interactive cells, of core widgets only; without widgets or a live kernel the same cell prints the same answer."""

from typing import Any

from lib import memory, platform


def memory_panel() -> Any:
    """Prints memory as it is; with a live kernel come a button that measures again and one that cleans up.

    What is printed stays in a saved notebook, where widgets have no kernel.
    """
    text = memory.check_memory()
    print(text)
    if not platform.in_notebook() or platform.detect().batch:
        return None
    try:
        import ipywidgets
    except ImportError:
        return None
    check = ipywidgets.Button(description="Check memory", button_style="info")
    clear = ipywidgets.Button(description="Clear memory")
    shown = ipywidgets.Textarea("", disabled=True, rows=text.count("\n") + 2, layout={"width": "100%"})
    shown.layout.display = "none"  # until there is something newer than what was printed

    def on_check(_: Any) -> None:
        shown.value = memory.check_memory()
        shown.layout.display = ""

    def on_clear(_: Any) -> None:
        memory.clear_memory()
        on_check(_)

    check.on_click(on_check)
    clear.on_click(on_clear)
    return ipywidgets.VBox([ipywidgets.HBox([check, clear]), shown])
