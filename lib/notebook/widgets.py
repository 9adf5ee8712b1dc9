"""Interactive cells, of core widgets only; without widgets or a live kernel the same cell prints the same answer."""

import uuid
from html import escape
from typing import Any

from lib import planner
from lib.machine import memory, platform
from lib.planner import Plan, file
from lib.planner.html import framed, of_plan


def live() -> bool:
    """Whether widgets can answer here: a notebook with somebody before it, and ipywidgets installed."""
    if not platform.in_notebook() or platform.detect().batch:
        return False
    try:
        import ipywidgets  # noqa: F401
    except ImportError:
        return False
    return True


class Kept:
    """An answer as the saved notebook keeps it: a picture, and its text where pictures are not shown.

    A widget is blank there. Where one is live and shows the same answer, its `hides` takes this one off the page.
    """

    def __init__(self, html: str, text: str):
        self._name = f"trainbook-{uuid.uuid4().hex[:12]}"
        self.hides = f"<style>.{self._name}{{display:none}}</style>"
        self._display: Any = None
        self.show(html, text)

    def show(self, html: str, text: str) -> None:
        """Shows the answer, in the place of the one before."""
        from IPython.display import display

        bundle = {"text/html": f'<div class="{self._name}">{html}</div>', "text/plain": text}
        if self._display is None:
            self._display = display(bundle, raw=True, display_id=True)
        else:
            self._display.update(bundle, raw=True)


def show_live(widget: Any, otherwise: str) -> None:
    """Shows a widget; `otherwise` stands in its place where there is no kernel, such as in an exported page."""
    from IPython.display import display

    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    display({"application/vnd.jupyter.widget-view+json": view, "text/plain": otherwise}, raw=True)


def print_answer(html: str, text: str) -> None:
    """The answer where nobody can press a button: its text, and in a notebook its picture."""
    print(text)
    if platform.in_notebook():
        Kept(html, "")


def plan_panel(plan: Plan | None, overrides: dict[str, Any]) -> None:
    """Shows a plan, with a button that puts it into `overrides`, the notebook's own; for None nothing."""
    if plan is None:
        return
    picture, text = of_plan(plan), planner.of_plan(plan)
    if not live():
        print_answer(picture, text)
        return
    import ipywidgets

    use = ipywidgets.Button(description="Use this plan", button_style="info", icon="check")
    said = ipywidgets.HTML()

    def on_use(_: Any) -> None:
        overrides.update(plan.overrides)
        said.value = framed(
            f"OVERRIDES now holds the plan. Run the cells below <b>Parameters</b> again, from "
            f"<code>notebook.configure</code> on. To keep it, paste this into Parameters:{code(overrides)}"
        )

    use.on_click(on_use)
    Kept(picture, text)
    show_live(ipywidgets.VBox([use, said]), "A button, which needs a live kernel, puts this plan into OVERRIDES.")


def code(overrides: dict[str, Any]) -> str:
    """The line to paste, as HTML that one click selects."""
    return (
        '<pre style="user-select:all;-webkit-user-select:all;white-space:pre-wrap;border:1px solid #888;'
        'border-radius:3px;padding:6px 8px;margin:4px 0;line-height:18px;font-size:12px">'
        f"{escape(file.as_code(overrides))}</pre>"
    )


def memory_panel() -> Any:
    """Prints memory as it is; with a live kernel come a button that measures again and one that cleans up.

    What is printed stays in a saved notebook, where widgets have no kernel.
    """
    text = memory.check_memory()
    print(text)
    if not live():
        return None
    import ipywidgets

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
