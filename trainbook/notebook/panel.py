"""The memory panel: choose workload, card and sizes, and see what training takes and how long it runs."""

import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import torch

from lib import planner
from lib.config import Config, as_overrides, profiles, with_changes
from lib.config.reader import flat, sentences
from lib.errors import BadInput, TrainingFailed
from lib.machine import platform
from lib.machine.facts import CARDS
from lib.planner import Plan
from lib.planner.card import card_of_gpu, find_card
from lib.planner.html import computing, framed, of_plan, refusal
from lib.planner.process import Cancelled
from lib.task import find_task, load_config
from trainbook import notebook
from trainbook.notebook import widgets

HERE = "this machine's GPU"  # as a card
_BATCHES = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


@dataclass(frozen=True)
class Choice:
    """A configuration file with dotted keys changed, on a number of cards (0: as many as a session has)."""

    path: Path
    overrides: Mapping[str, Any]
    card: str
    cards: int = 0

    def plan(self, cancelled: threading.Event | None = None) -> Plan:
        """Plans without a micro-batch, with whole slots for each card. Raises BadInput, TrainingFailed, Cancelled."""
        config = with_changes(_by_profile(self.path, self.overrides), {"training.micro_batch": 0})
        if self.cards and config.training.micro_batch_slots % self.cards:
            config = with_changes(config, {"training.micro_batch_slots": self.cards})
        card = card_of_gpu(0) if self.card == HERE else find_card(self.card)
        return planner.plan(config, card, self.cards, cancelled)

    def to_paste(self, plan: Plan) -> dict[str, Any]:
        """Returns the dotted keys that make a run of the configuration file follow the plan."""
        key = "memory.profile"
        profile = {key: self.overrides[key]} if key in self.overrides else {}
        defaults = flat(_by_profile(self.path, profile))
        defaults[key] = load_config(self.path).memory.profile
        values = {**self.overrides, "training.micro_batch_slots": plan.slots}
        changed = {}
        for key, value in values.items():
            if key not in defaults or defaults[key] != value:
                changed[key] = value
        return {**changed, **plan.overrides}


def _by_profile(path: Path, overrides: Mapping[str, Any]) -> Config:
    return profiles.apply(load_config(path, overrides), has_gpu=True)[0]


def show(
    folder: Path, config: str = "", card: str = "", count: int = 0, overrides: Mapping[str, Any] | None = None,
    output_dir: str = "",
) -> None:  # fmt: skip
    """Shows the panel in a live notebook, else the answer; by default for this machine's GPU, or a T4."""
    paths = sorted(folder.glob("*.yaml"))
    fitting = [path for path in paths if not config or path.stem == Path(config).stem]
    if not fitting:
        names = ", ".join(path.stem for path in paths)
        raise BadInput(f"There is no configuration {config!r}. There are: {names}.")
    default = HERE if torch.cuda.is_available() else "t4"
    start = Choice(fitting[0], as_overrides(overrides), card or default, count)
    if widgets.live():
        Panel(paths, start, Path(output_dir or platform.detect().output_dir)).show()
    else:
        plan = start.plan()
        line = widgets.as_code(start.to_paste(plan))
        follow = f"To follow this plan, in the Parameters of the training notebook:\n{line}"
        notebook.show(f"{planner.of_plan(plan)}\n\n{follow}", of_plan(plan))


def side_by_side(path: Path, overrides: Mapping[str, Any], names: Sequence[str]) -> str:
    """Returns a table of one configuration's plans on several cards, and a sentence for each card without a plan."""
    plans = []
    refused = []
    for name in names:
        try:
            plans.append(Choice(path, as_overrides(overrides), name).plan())
        except BadInput as error:
            refused.append(str(error))
    return "\n".join([planner.of_plans(plans)] * bool(plans) + refused)


class Panel:
    """The controls, the plan that they choose, and the picture of it."""

    def __init__(self, paths: Sequence[Path], start: Choice, output_dir: Path):
        self.start = start
        self.output_dir = output_dir
        self._paths = {path.stem: path for path in paths}
        self._planning = threading.Lock()  # one plan at a time
        self._worker: threading.Thread | None = None
        self._cancelled = threading.Event()  # of the newest choice
        self._planned: tuple[Choice, Plan] | None = None  # that is shown
        self._html = ""
        self._setting = False
        self._make_controls(start)
        self._take_sizes(start.path)

    def _make_controls(self, start: Choice) -> None:
        import ipywidgets as w

        self._w = w
        cards = {HERE: HERE} if torch.cuda.is_available() else {}
        for name, known in CARDS.items():
            cards[name] = f"{known.name}, {known.memory_gib:g} GiB"
        card = start.card.lower() if start.card.lower() in CARDS else start.card
        cards.setdefault(card, card)  # the parameters cell may describe one
        options = [(label, name) for name, label in cards.items()]
        self.workload = self._control(w.Dropdown, "Workload", options=list(self._paths))
        self.card = self._control(w.Dropdown, "Card", options=options, value=card)
        self.batch = self._control(w.SelectionSlider, "Effective batch", options=_BATCHES)
        precisions = ["auto", "fp16", "bf16", "fp32"]
        self.precision = self._control(w.Dropdown, "Precision", options=precisions)
        self.dials = w.VBox([])
        self.about = w.HTML()
        self.use = w.Button(
            description="Use this plan", button_style="success", icon="check", disabled=True
        )
        self.use.on_click(self._use)
        self.answer = w.HTML()
        self.status = w.HTML()
        self.message = w.HTML()
        choices = [self.workload, self.card, self.batch, self.precision, self.dials, self.about]
        left = w.VBox([*choices, self.use, self.status], layout={"width": "330px"})
        right = w.VBox([self.answer, self.message], layout={"flex": "1 1 480px", "min_width": "0"})
        wraps = {
            "display": "flex",
            "flex_flow": "row wrap",
            "width": "100%",
            "grid_gap": "8px 18px",
        }
        self.box = w.Box([left, right], layout=wraps)

    def _control(self, kind: Any, description: str, **values: Any) -> Any:
        look = {"style": {"description_width": "112px"}, "layout": {"width": "auto"}}
        control = kind(description=description, **look, **values)
        control.continuous_update = False  # plan when a slider is released
        control.observe(self._changed, "value")
        return control

    def _take_sizes(self, path: Path) -> None:
        """Sets the controls to a configuration's values, without planning."""
        config = _by_profile(path, self._overrides(path))
        dials = find_task(config.task).dials
        values: dict[str, Any] = flat(config)
        names = {key: key.rpartition(".")[2].replace("_", " ").capitalize() for key in dials}
        self._dials = {}
        for key, sizes in dials.items():
            options = {"options": sorted({*sizes, values[key]}), "value": values[key]}
            self._dials[key] = self._control(self._w.SelectionSlider, names[key], **options)
        helps = {**sentences(Config), **sentences(type(config.workload), "workload.")}
        about = ""
        for key in dials:
            line = f"<b>{escape(names[key])}</b>: {escape(helps[key])}"
            about += f'<div style="font-size:12px;line-height:16px">{line}</div>'
        self.about.value = about
        self._setting = True
        try:
            self.workload.value = path.stem
            self.batch.options = sorted({*_BATCHES, config.training.effective_batch})
            self.batch.value = config.training.effective_batch
            self.precision.value = config.training.precision
            self.dials.children = tuple(self._dials.values())
        finally:
            self._setting = False

    def _overrides(self, path: Path) -> Mapping[str, Any]:
        """Returns the parameters cell's overrides, which belong to its configuration."""
        if path == self.start.path:
            return self.start.overrides
        return {}

    def choice(self) -> Choice:
        path = self._paths[self.workload.value]
        overrides = dict(self._overrides(path))
        overrides["training.effective_batch"] = self.batch.value
        overrides["training.precision"] = self.precision.value
        for key, dial in self._dials.items():
            overrides[key] = dial.value
        return Choice(path, overrides, self.card.value, self.start.cards)

    def show(self) -> None:
        """Shows the panel and waits for its first answer; clicks in the meantime are handled after it."""
        from IPython.display import display

        view = {"version_major": 2, "version_minor": 0, "model_id": self.box.model_id}
        otherwise = "The controls need a live kernel: run this cell."
        display(
            {"application/vnd.jupyter.widget-view+json": view, "text/plain": otherwise}, raw=True
        )
        choice = self.choice()
        self._show_computing(choice)
        self._work(choice, self._cancelled)

    def _changed(self, change: Mapping[str, Any]) -> None:
        if self._setting:
            return
        if change["owner"] is self.workload:
            self._take_sizes(self._paths[self.workload.value])
        self._cancelled.set()
        self._cancelled = threading.Event()
        choice = self.choice()
        self._show_computing(choice)
        self._worker = threading.Thread(
            target=self._work, args=(choice, self._cancelled), daemon=True
        )
        self._worker.start()

    def _work(self, choice: Choice, cancelled: threading.Event) -> None:
        """Plans a choice after the plan that is being ended, and shows it unless the choice has changed."""
        with self._planning:
            if cancelled.is_set():
                return
            try:
                answer: Plan | str = choice.plan(cancelled)
            except (BadInput, TrainingFailed) as error:
                answer = str(error)
            except Cancelled:
                return
            except Exception:  # a thread's traceback would go nowhere
                error_text = traceback.format_exc()
                answer = f"The planner failed, which is a fault in its code:\n{error_text}"
            if not cancelled.is_set():
                self._show(choice, answer)

    def _show_computing(self, choice: Choice) -> None:
        self.use.disabled = True
        self.status.value = computing(
            f"Planning {choice.path.stem} on {choice.card} (2 to 12 s) ..."
        )
        self.answer.value = f'<div style="opacity:.35">{self._html}</div>'
        self.message.value = ""

    def _show(self, choice: Choice, answer: Plan | str) -> None:
        if isinstance(answer, Plan):
            self._planned = choice, answer
            self._html = of_plan(answer)
        else:
            self._html = refusal(answer)
        self.use.disabled = not isinstance(answer, Plan)
        self.answer.value = self._html
        self.status.value = ""
        self.message.value = ""

    def _use(self, _: Any) -> None:
        if self._planned is None:
            return
        choice, plan = self._planned
        overrides = choice.to_paste(plan)
        try:
            path = widgets.write(self.output_dir, choice.path.stem, overrides)
            note = (
                f"Written to <code>{escape(str(path))}</code>: a training notebook that runs {choice.path.stem} with "
                "the same output folder takes it where its own OVERRIDES says nothing else."
            )
        except BadInput as error:
            note = refusal(str(error))
        line = widgets.code(overrides)
        self.message.value = framed(
            f"Paste into the Parameters of the training notebook:{line}{note}"
        )
