"""What every training notebook does with its parameters, its plan and its result."""

import difflib
import importlib
import io
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from lib import planner
from lib.config import Config, as_overrides
from lib.errors import BadInput, TrainingFailed, printable
from lib.machine import disk, platform
from lib.machine.inputs import made_names, run_folders
from lib.planner.html import of_plan
from lib.task import load_config
from lib.text import aligned, as_html
from lib.training import identity
from lib.training.summary import Summary
from trainbook import launch
from trainbook.launch import queue
from trainbook.launch.run import CODE, has_queue
from trainbook.notebook import widgets
from trainbook.outputs.summary import results

Parameters = Mapping[str, Any]  # the names of the parameters cell

# Parameter -> the configuration key that it overrides when it is not empty.
KEYS = {
    "DATA_DIR": "data.dir", "OUTPUT_DIR": "output_dir", "SMOKE_STEPS": "training.smoke_steps",
    "MAX_STEPS": "training.max_steps", "SESSION_MINUTES": "session.minutes", "RESUME_FROM": "run.resume_from",
}  # fmt: skip
_LARGE_PICTURE = 150_000  # bytes, for a drawing with photographs
# Jupyter breaks what cells print inside of words, and its classic pages the packed line of the library into thousands.
_WRAPS = """<style>.jp-OutputArea-output pre,div.output_area pre{white-space:pre-wrap;word-break:normal}
div.input_area pre{white-space:pre;overflow-x:auto}</style>"""


def __getattr__(name: str) -> Any:
    """Returns `run`, which runs a command; notebooks that do not name its module need not carry it."""
    if name == "run":
        return importlib.import_module("trainbook.run.notebook").run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class Ended(Exception):
    """Ends "run all" at this cell on purpose; a notebook shows its text without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def show(text: str, html: str = "") -> None:
    """Prints a text; a notebook displays `html`, by default the text with tables of HTML and sentences that wrap."""
    if platform.in_notebook():
        from IPython.display import display

        # str: a Markup, as the planner returns, would escape the text that it is added to
        display({"text/html": _WRAPS + str(html or as_html(text)), "text/plain": text}, raw=True)
    else:
        print(text)


def end_if(smoke_only: bool) -> None:
    """Ends the notebook after the smoke test if `smoke_only`: raises Ended, and exits a batch run with code 0."""
    text = "SMOKE_ONLY is True, so nothing is trained. To train, set it to False in Parameters, and run all again."
    if smoke_only and platform.detect().batch:
        print(text, flush=True)
        sys.exit(0)  # which papermill takes as a good end
    if smoke_only:
        raise Ended(text)


def save_cells(configuration: str, path: Path) -> None:
    """Writes a configuration, and of `task: FILE.py:CLASS` the newest cell with the class.

    Raises BadInput if no cell that was run defines it.
    """
    disk.make_folders(path.parent)
    task = re.search(r"^task: *([\w-]+\.py):(\w+)", configuration, re.M)
    if task:
        cell = _cell_of(task[2])
        place = path.with_name(task[1])
        disk.write_text(place, cell.strip() + "\n")
        print(f"The cell of {task[2]} is now the file {place}.")
    disk.write_text(path, configuration.strip() + "\n")
    print(f"The settings are now the file {path}.")


def _cell_of(name: str) -> str:
    """Returns the newest cell that defines a class. Raises BadInput if none that was run does."""
    cells = vars(sys.modules["__main__"]).get("In") or [""]
    defined = {each: cell for cell in cells for each in re.findall(r"^class (\w+)", cell, re.M)}
    if name not in defined:
        classes = ", ".join(defined) or "none"
        raise BadInput(
            f"No cell that was run defines the class {name}, which `task:` names. Classes of cells: {classes}. "
            "Run the cell of yours, and write its name behind `task: my_task.py:`."
        )
    return defined[name]


def configure(workload: str, home: Path, parameters: Parameters) -> Config:
    """Returns the configuration of the parameters cell, below `home`. Raises BadInput for a queue of runs."""
    path, overrides = _file_and_overrides(workload, home, parameters)
    config = load_config(path, overrides)
    if has_queue(path, config):
        folder = shlex.quote(str(home))
        file = shlex.quote(str(path.absolute()))
        raise BadInput(
            f"This notebook trains one run, and its parameters ask for a queue (in {path.name}, or in OVERRIDES). "
            "Take folds and queue.* out, or train the queue from a cell, each override as --set:\n"
            f"!cd {folder} && {sys.executable} -m trainbook.command train {file}"
        )
    return config


def configure_queue(workload: str, home: Path, parameters: Parameters) -> list[queue.Entry]:
    """Returns the runs of the parameters cell, one without a queue; prints as `configure` does. Raises BadInput."""
    path, overrides = _file_and_overrides(workload, home, parameters)
    config = load_config(path, overrides)
    if not has_queue(path, config):
        return [queue.Entry(config, config.run.name)]
    return queue.entries(path, overrides)


def finish_queue(runs: list[queue.Entry]) -> None:
    """Trains what is left of a queue, shows its runs beside each other, and hands in what they answer together."""
    queue.run_queue(runs)
    show(f"{queue.table(runs)}\n{queue.verdict(runs)}")
    queue.conclude(runs, show)


def _file_and_overrides(
    workload: str, home: Path, parameters: Parameters
) -> tuple[Path, dict[str, Any]]:
    """Returns the configuration file and the overrides by dotted key, a plan's included; prints them."""
    if parameters["CONFIG"]:
        path = Path(parameters["CONFIG"])
        path = path if path.exists() else home / path
    else:
        has_small = (home / f"configs/{workload}_small.yaml").is_file()
        name, why = default_config(workload, torch.cuda.is_available(), has_small)
        path = home / name
        print(f"CONFIG is empty: taking {name}, because {why}.")
    overrides = {key: parameters[name] for name, key in KEYS.items() if parameters[name]}
    overrides |= as_overrides(parameters["OVERRIDES"])
    for key, value in overrides.items():
        print(f"Override: {printable(key)} = {value!r}")
    config = load_config(path, overrides)
    folder = platform.output_dir(config.output_dir)
    plan = widgets.find(folder, path.stem, lambda plan: load_config(path, plan | overrides))
    if plan is None:
        return path, overrides
    file, planned = plan
    for key, value in planned.items():
        but = ", but it is overridden" if key in overrides else ""
        print(f"Plan {printable(file)}: {printable(key)} = {value!r}{but}")
    return path, {**planned, **overrides}


def default_config(workload: str, has_gpu: bool, has_small: bool) -> tuple[str, str]:
    small = f"{workload}_small.yaml"
    if has_small and not has_gpu:
        return f"configs/{small}", "there is no GPU, so this is the small size for a laptop"
    why = "a GPU is there" if has_gpu else f"there is no GPU, and no {small} for such a machine"
    return f"configs/{workload}.yaml", why


def plan(run: launch.Run) -> None:
    """Shows the plan for this machine's GPU, or without a GPU for Kaggle's T4s; prints the reason without a plan."""
    plan = run.plan
    if not torch.cuda.is_available():
        print("There is no GPU here to plan for. On Kaggle's T4s this run would be:")
        try:
            plan = planner.plan(run.config, "t4")
        except (BadInput, TrainingFailed) as error:
            print(f"Nothing is planned. {str(error).splitlines()[-1]}")
    elif not plan:
        print("There is no plan; the lines under Data say why.")
    if plan:
        show(planner.of_plan(plan), of_plan(plan))


def ended(summary: Summary) -> str:
    sentence = f"{summary.reason} at step {summary.step:,} of {summary.max_steps:,}"
    if summary.reason == "interrupted":
        sentence += ": everything is saved. Run this cell again to continue"
    if summary.reason == "deadline":
        sentence += ": everything is saved. Run again in a new session, with this output"
    return f"{sentence}. {summary.why_early}".rstrip()


def picture(path: Path | io.BytesIO) -> Any:
    """Returns a picture as a PNG of 256 colours, or a JPEG of half the size: Kaggle takes notebooks of 1 MB."""
    import PIL.Image  # which matplotlib brings along
    from IPython import display

    drawn = PIL.Image.open(path).convert("RGB")
    small = io.BytesIO()
    drawn.quantize(256).save(small, "PNG", optimize=True)
    if small.tell() <= _LARGE_PICTURE:
        return display.Image(data=small.getvalue(), format="png")
    size = (drawn.width // 2, drawn.height // 2)
    half = drawn.resize(size, PIL.Image.Resampling.LANCZOS)
    small = io.BytesIO()
    half.save(small, "JPEG", quality=80, optimize=True)
    return display.Image(data=small.getvalue(), format="jpeg", width=drawn.width)


def compare(summary: Summary) -> str:
    """Returns the test metrics beside the baseline, and the task's report; or the reason why they are missing."""
    if summary.reason != "completed":
        left = summary.max_steps - summary.step
        return f"The run stopped ({summary.reason}) with {left:,} steps left; the test comes when it is completed."
    if summary.missing and not summary.metrics:
        failures = [f"{name} failed ({error})" for name, error in summary.missing.items()]
        why = "; ".join(failures)
        return (
            f"The run is completed, but {why}. Correct it and run again: nothing is trained again."
        )
    return results(summary)


def runs(run: launch.Run) -> str:
    """Returns a row for each run that `run.on_change: new` made.

    It has the state, the test metrics, and the differences from the first run.
    """
    made = _made(run)
    if len(made) <= 1:
        return "There is one run so far. Edit the model or a setting, and run all again: both are compared here."
    shown = run.task.shown
    first_folder, first = made[0]
    rows: list[Sequence[str]] = [("run", "state", *shown, "what differs from the first")]
    for folder, summary in made:
        different, _ = identity.compare(first.identity, summary.identity, is_completed=True)
        settings = {key: pair for key, pair in different.items() if key != "code of the task"}
        differs = identity.in_a_line(settings)
        if "code of the task" in different:
            edit = _edit(first_folder / CODE, folder / CODE)
            differs = f"{differs}, {edit}" if differs else edit
        metrics = summary.metrics
        scores = [f"{metrics[name]:.3f}" if name in metrics else "" for name in shown]
        state = f"{summary.reason} {summary.step:,}/{summary.max_steps:,}"
        rows.append((summary.run, state, *scores, differs))
    return aligned(rows, left={0, 1, len(rows[0]) - 1})


def _made(run: launch.Run) -> list[tuple[Path, Summary]]:
    """Returns the folders and summaries of a run and its edits."""
    made = []
    options = run.config.run
    output_dir = run.config.output_dir
    for name in made_names(run.base_name or options.name, output_dir):
        for place in run_folders(name, output_dir, options.resume_from):
            summary = Summary.read(place)
            if summary and summary.identity:
                made.append((place, summary))
                break
    return made


def _edit(before: Path, after: Path) -> str:
    """Returns the first edit in a task's code, `nn.ReLU() -> nn.GELU()`, and how many lines follow."""
    lines = [*difflib.unified_diff(_code(before), _code(after), n=0, lineterm="")]
    lines = [line for line in lines[2:] if line[1:].strip()]  # behind the two names of files
    removed = [line[1:] for line in lines if line[0] == "-"]
    added = [line[1:] for line in lines if line[0] == "+"]
    old = " ".join(removed[:1]).split()
    new = " ".join(added[:1]).split()
    for place in (0, -1):  # the words that both lines begin and end with
        while old and new and old[place] == new[place]:
            old.pop(place)
            new.pop(place)
    sides = [printable(" ".join(words).strip(",") or "-", most=60) for words in (old, new)]
    edit = f"code: {' -> '.join(sides)}"
    count = max(len(removed), len(added)) - 1
    return f"{edit} and {count} more lines" if count > 0 else edit


def _code(folder: Path) -> list[str]:
    lines = []
    for path in sorted(folder.rglob("*.py")):
        lines += path.read_text("utf-8", "replace").splitlines()
    return lines
