"""Interactive cells, of core widgets only; without widgets or a live kernel the same cell prints the same answer."""

from typing import Any

from lib import memory, platform


def memory_panel() -> Any:
    """Memory now, with a button that measures again and one that gives back what nobody refers to."""
    text = memory.check_memory()
    if not platform.in_notebook() or platform.detect().batch:
        print(text)
        return None
    try:
        import ipywidgets
    except ImportError:
        print(text)
        return None
    shown = ipywidgets.Textarea(text, disabled=True, rows=text.count("\n") + 2, layout={"width": "100%"})
    check = ipywidgets.Button(description="Check memory", button_style="info")
    clear = ipywidgets.Button(description="Clear memory")

    def on_check(_: Any) -> None:
        shown.value = memory.check_memory()

    def on_clear(_: Any) -> None:
        memory.clear_memory()
        shown.value = memory.check_memory()

    check.on_click(on_check)
    clear.on_click(on_clear)
    return ipywidgets.VBox([shown, ipywidgets.HBox([check, clear])])
