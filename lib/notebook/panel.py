"""The memory panel: choose workload, card and sizes, and see what training takes and how long it runs.

A plan is made in a child process that takes 2 to 12 seconds. While it runs the panel goes on listening: a thread waits
for it, the newest choice wins, and an answer once found is kept.
"""

import json
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import torch

from lib import planner
from lib.config import Config, with_changes
from lib.config.reader import flat
from lib.errors import BadInput, TrainingFailed
from lib.machine import memory, platform
from lib.machine.facts import CARDS
from lib.notebook import widgets
from lib.planner import Plan, file
from lib.planner.card import card_of_gpu, find_card
from lib.planner.html import computing, dimmed, framed, gauge, of_plan, refusal
from lib.task import find_task, load_config

HERE = "this machine's GPU"  # as a card
_OWN = "own"
_COUNTS = (1, 2, 4, 8)
_BATCHES = tuple(2**power for power in range(2, 11))
_GAUGE_SECONDS = 2.0


@dataclass(frozen=True)
class Choice:
    """What is planned: a configuration file with dotted keys changed, on a number of cards (0: as a session has)."""

    path: Path
    overrides: Mapping[str, Any]
    card: str
    cards: int = 0

    @property
    def key(self) -> str:
        return json.dumps([str(self.path), self.card, self.cards, self.overrides], default=repr, sort_keys=True)

    def config(self) -> Config:
        """The configuration that is planned: its micro-batch is what is asked, and cards take whole slots."""
        config = load_config(self.path, {**self.overrides, "training.micro_batch": 0})
        if self.cards and config.training.micro_batch_slots % self.cards:
            config = with_changes(config, {"training.micro_batch_slots": self.cards})
        return config

    def plan(self) -> Plan:
        """Raises BadInput, and TrainingFailed where the task's own code fails."""
        card = card_of_gpu(0) if self.card == HERE else find_card(self.card)
        return planner.plan(self.config(), card, self.cards)

    def to_paste(self, plan: Plan) -> dict[str, Any]:
        """The dotted keys that make a run of the configuration file follow the plan."""
        own = flat(load_config(self.path))
        chosen = {**self.overrides, "training.micro_batch_slots": plan.slots}
        changed = {key: value for key, value in chosen.items() if key not in own or own[key] != value}
        return {**changed, **plan.overrides}


def show(
    folder: Path,
    config: str = "",
    card: str = "",
    count: int = 0,
    overrides: Mapping[str, Any] | None = None,
    output_dir: str = "",
) -> None:
    """The panel in a live notebook; elsewhere the answer for these values, as text and in a notebook as a picture too.

    `folder` holds the configurations; `config` names the one to begin with, `card` a card as the planner takes it
    (empty: this machine's GPU, or a T4). Raises BadInput for a configuration that cannot be read; without a live
    notebook for any other value that does not fit, too.
    """
    paths = sorted(folder.glob("*.yaml"))
    chosen = [path for path in paths if not config or path.stem == Path(config).stem]
    if not chosen:
        raise BadInput(f"There is no configuration {config!r}. There are: {', '.join(path.stem for path in paths)}.")
    start = Choice(chosen[0], overrides or {}, card or (HERE if torch.cuda.is_available() else "t4"), count)
    if widgets.live():
        Panel(paths, start, Path(output_dir or platform.detect().output_dir)).show()
    else:
        plan = start.plan()
        widgets.print_answer(of_plan(plan), in_text(start, plan))


def in_text(choice: Choice, plan: Plan) -> str:
    return f"{planner.of_plan(plan)}\n\nTo follow this plan, in the Parameters of the training notebook:\n" + (
        file.as_code(choice.to_paste(plan))
    )


def side_by_side(path: Path, overrides: Mapping[str, Any], names: Sequence[str]) -> str:
    """What is recommended for one configuration on each of several cards; a sentence for each that does not do."""
    plans, refused = [], []
    for name in names:
        try:
            plans.append(Choice(path, overrides, name).plan())
        except BadInput as error:
            refused.append(str(error))
    return "\n".join([planner.of_plans(plans)] * bool(plans) + refused)


class Panel:
    """The controls, what they ask for, and the answer."""

    def __init__(self, paths: Sequence[Path], start: Choice, output_dir: Path):
        self.start, self.output_dir = start, output_dir
        self._paths = {path.stem: path for path in paths}
        self._answers: dict[str, Plan | str] = {}
        self._wanted = start
        self._busy = False
        self._lock = threading.Lock()
        self._worker: threading.Thread | None = None
        self._plan: Plan | None = None
        self._html = ""
        self._setting = False
        self._kept: widgets.Kept | None = None
        self._make_controls()
        self._take_card(start)
        self._take_sizes(start.path)

    # --- controls -------------------------------------------------------------------------------------------------

    def _make_controls(self) -> None:
        import ipywidgets as w

        self._w = w
        self._look = {"style": {"description_width": "112px"}, "layout": {"width": "auto"}}
        names = [(f"{card.name}, {card.memory_gib:g} GiB", name) for name, card in CARDS.items()]
        here = [(HERE, HERE)] if torch.cuda.is_available() else []
        self.workload = w.Dropdown(options=list(self._paths), description="Workload", **self._look)
        self.card = w.Dropdown(options=[*here, *names, ("my own ...", _OWN)], description="Card", **self._look)
        self.own = w.Text(
            description="its memory", placeholder="8 GiB, capability 8.6", continuous_update=False, **self._look
        )
        self.count = w.Dropdown(options=[("as a session has", 0)], description="Number of cards", **self._look)
        self.batch = w.SelectionSlider(
            options=_BATCHES, description="Effective batch", continuous_update=False, **self._look
        )
        precisions = ["auto", "fp16", "bf16", "fp32"]
        self.precision = w.Dropdown(options=precisions, description="Precision", **self._look)
        self.recomputed = w.Dropdown(options=[("as few as fit", 0)], description="Recomputed", **self._look)
        self.dials = w.VBox([])
        self.use = w.Button(description="Use this plan", button_style="success", icon="check", disabled=True)
        self.answer, self.status, self.said, self.gauge = w.HTML(), w.HTML(), w.HTML(), w.HTML()
        fixed = [self.workload, self.card, self.own, self.count, self.batch, self.precision, self.recomputed]
        for control in fixed:
            control.observe(self._changed, "value")
        self.use.on_click(self._use)
        left = w.VBox([*fixed, self.dials, self.use, self.status, self.gauge], layout={"width": "330px"})
        right = w.VBox([self.answer, self.said], layout={"flex": "1 1 480px", "min_width": "0", "margin": "0 0 0 18px"})
        self.box = w.Box([left, right], layout={"display": "flex", "flex_flow": "row wrap", "width": "100%"})

    def _take_card(self, choice: Choice) -> None:
        with self._without_asking():
            known = choice.card if choice.card == HERE else choice.card.lower()
            is_known = known in [value for _, value in self.card.options]
            self.card.value = known if is_known else _OWN
            self.own.value = "" if is_known else choice.card
            self.count.options = [(str(n) if n else "as a session has", n) for n in sorted({0, *_COUNTS, choice.cards})]
            self.count.value = choice.cards
        self._show_own()

    def _take_sizes(self, path: Path) -> None:
        """Sets batch, precision, recomputation and dials as a configuration has them."""
        config = load_config(path, self._given(path))
        task, values = find_task(config.task), flat(config)
        with self._without_asking():
            self.workload.value = path.stem
            self.batch.options = sorted({*_BATCHES, config.training.effective_batch})
            self.batch.value = config.training.effective_batch
            self.precision.value = config.training.precision
            self.recomputed.options = _recomputations(config)
            self.recomputed.value = config.training.gradient_checkpointing
            self._dials = {key: self._dial(key, sizes, values[key]) for key, sizes in task.dials.items()}
            self.dials.children = tuple(self._dials.values())

    def _given(self, path: Path) -> Mapping[str, Any]:
        """The overrides of the parameters cell, which belong to the configuration that it begins with."""
        return self.start.overrides if path == self.start.path else {}

    def _dial(self, key: str, sizes: Sequence[int], value: int) -> Any:
        name = key.rpartition(".")[2].replace("_", " ").capitalize()
        options = sorted({*sizes, value})
        dial = self._w.SelectionSlider(
            options=options, value=value, description=name, continuous_update=False, **self._look
        )
        dial.observe(self._changed, "value")
        return dial

    @contextmanager
    def _without_asking(self) -> Iterator[None]:
        self._setting = True
        try:
            yield
        finally:
            self._setting = False

    def _show_own(self) -> None:
        self.own.layout.display = "" if self.card.value == _OWN else "none"

    def choice(self) -> Choice:
        """What the controls say now."""
        path = self._paths[self.workload.value]
        values = {
            "training.effective_batch": self.batch.value,
            "training.precision": self.precision.value,
            "training.gradient_checkpointing": self.recomputed.value,
            **{key: dial.value for key, dial in self._dials.items()},
        }
        card = self.own.value.strip() if self.card.value == _OWN else self.card.value
        return Choice(path, {**self._given(path), **values}, card, self.count.value)

    # --- asking and answering -------------------------------------------------------------------------------------

    def show(self) -> None:
        """Shows the panel with its first answer, which the cell waits for; what is clicked meanwhile comes after it."""
        widgets.show_live(self.box, "The controls need a live kernel; this is the last answer.")
        first = self._wanted = self.choice()
        self._say_computing(first)
        plan = self._answer_of(first)
        self._kept = widgets.Kept(*self._as_kept(first, plan))
        self._show(first, plan)
        _start_gauge(self.gauge)

    def _changed(self, change: Mapping[str, Any]) -> None:
        if self._setting:
            return
        self._show_own()
        if self.card.value == _OWN and not self.own.value.strip():
            self.status.value = "Write the memory of your card, for example <i>8 GiB, capability 8.6</i>."
            return
        if change["owner"] is self.workload:
            self._take_sizes(self._paths[self.workload.value])
        self._ask(self.choice())

    def _ask(self, choice: Choice) -> None:
        """Answers at once where the answer is known; otherwise the thread does, after what it is at."""
        with self._lock:
            self._wanted = choice
            if choice.key in self._answers:
                self._show(choice, self._answers[choice.key])
                return
            self._say_computing(choice)
            if self._busy:
                return
            self._busy = True
        self._worker = threading.Thread(target=self._work, daemon=True)
        self._worker.start()

    def _work(self) -> None:
        """Answers the newest choice until no newer one has come."""
        while True:
            choice = self._wanted
            answer = self._answer_of(choice)
            with self._lock:
                if choice.key == self._wanted.key:
                    self._busy = False
                    self._show(choice, answer)
                    return

    def wait(self, seconds: float) -> bool:
        """Waits until the controls are answered; False where they are not by then."""
        if self._worker:
            self._worker.join(seconds)
        return not self._busy

    def _answer_of(self, choice: Choice) -> Plan | str:
        """The plan, or the sentence that says why there is none."""
        if choice.key not in self._answers:
            try:
                self._answers[choice.key] = choice.plan()
            except (BadInput, TrainingFailed) as error:
                self._answers[choice.key] = str(error)
            except Exception:  # a thread's traceback would go nowhere; it is shown, and not kept
                return f"The planner failed, which is a fault of its own:\n{traceback.format_exc()}"
        return self._answers[choice.key]

    def _say_computing(self, choice: Choice) -> None:
        self.use.disabled = True
        text = f"Planning {choice.path.stem} on {choice.card} (2 to 12 s) ..."
        self.status.value = computing(text)
        self.answer.value = dimmed(self._html)
        self.said.value = ""

    def _show(self, choice: Choice, answer: Plan | str) -> None:
        html, text = self._as_kept(choice, answer)
        self._plan = answer if isinstance(answer, Plan) else None
        hides = ""
        if self._kept:
            hides = self._kept.hides
            self._kept.show(html, text)
        self.status.value, self.said.value = "", ""
        self._html = hides + (of_plan(answer) if isinstance(answer, Plan) else html)
        self.answer.value = self._html
        self.use.disabled = self._plan is None

    def _as_kept(self, choice: Choice, answer: Plan | str) -> tuple[str, str]:
        if isinstance(answer, str):
            return refusal(answer), answer
        line = widgets.code(choice.to_paste(answer))
        return of_plan(answer) + f"To follow this plan:{line}", in_text(choice, answer)

    def _use(self, _: Any) -> None:
        """Shows the line to paste, and writes the file that a training notebook picks up."""
        if self._plan is None:
            return
        choice = self.choice()
        overrides = choice.to_paste(self._plan)
        try:
            path = file.write(self.output_dir, choice.path.stem, self._plan, overrides)
            kept = (
                f"Written to <code>{escape(str(path))}</code>: a training notebook that "
                f"runs {choice.path.stem} with the same output folder takes it, below what its own OVERRIDES says."
            )
        except BadInput as error:
            kept = refusal(str(error))
        line = widgets.code(overrides)
        self.said.value = framed(f"Paste into the Parameters of the training notebook:{line}{kept}")


def _recomputations(config: Config) -> list[tuple[str, int | str]]:
    """What can be asked of recomputation: the plan never takes fewer layers than this."""
    with torch.device("meta"):
        layers = len(getattr(find_task(config.task)(config).model(), "blocks", ()))
    own = config.training.gradient_checkpointing
    some = {n for n in (layers // 2, own) if isinstance(n, int) and n > 0}
    found: list[tuple[str, int | str]] = [("as few layers as fit", 0)]
    found += [(f"at least {n} of {layers} layers", n) for n in sorted(some)]
    return [*found, (f"all {layers} layers", "all")] if layers or own == "all" else found


_gauge_stop = threading.Event()


def _start_gauge(shown: Any) -> None:
    """Keeps the memory in use of this machine's GPUs before the eye, where there are any; the newest panel's only."""
    global _gauge_stop
    _gauge_stop.set()
    if not torch.cuda.is_available():
        return
    _gauge_stop = threading.Event()
    threading.Thread(target=_keep_gauge, args=(shown, _gauge_stop), daemon=True).start()


def _keep_gauge(shown: Any, stop: threading.Event) -> None:
    while not stop.is_set():
        shown.value = gauge([reading for reading in memory.readings() if reading.name != "RAM"])
        stop.wait(_GAUGE_SECONDS)
