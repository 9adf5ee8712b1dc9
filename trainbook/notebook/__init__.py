"""What every training notebook does with its parameters, its plan and its result."""

import difflib
import io
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lib import planner
from lib.config import Config, as_overrides, with_changes
from lib.errors import BadInput, TrainingFailed, printable
from lib.machine import disk, platform
from lib.planner.html import of_plan
from lib.task import load_config
from lib.text import aligned, as_html
from lib.training import identity
from trainbook import launch
from trainbook.launch import queue
from trainbook.launch.run import CODE, has_queue, made_names, run_folders
from trainbook.notebook import widgets
from trainbook.outputs.summary import Summary, results

Parameters = Mapping[str, Any]  # the names of the parameters cell

# Parameter -> the configuration key that it overrides when it is not empty.
KEYS = {
    "DATA_DIR": "data.dir", "OUTPUT_DIR": "output_dir", "SMOKE_STEPS": "training.smoke_steps",
    "MAX_STEPS": "training.max_steps", "SESSION_MINUTES": "session.minutes", "RESUME_FROM": "run.resume_from",
}  # fmt: skip
_LARGE_PICTURE = 150_000  # bytes, of a drawing with photographs in it
# Jupyter breaks what cells print inside of words, and its classic pages the packed line of the library into thousands.
_WRAPS = """<style>.jp-OutputArea-output pre,div.output_area pre{white-space:pre-wrap;word-break:normal}
div.input_area pre{white-space:pre;overflow-x:auto}</style>"""


class Ended(Exception):
    """Ends "run all" at this cell on purpose; a notebook shows its text without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def show(text: str, html: str = "") -> None:
    """Prints a text; a notebook displays `html`, by default the text with tables of HTML and sentences that wrap."""
    if platform.in_notebook():
        from IPython.display import display

        # str: a Markup, as the planner returns, would escape what it is added to
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
    """Writes a configuration, and beside it the newest cell with the class of its `task:`. Raises BadInput for none."""
    cells = vars(sys.modules["__main__"]).get("In") or [""]
    defined = {name: cell for cell in cells for name in re.findall(r"^class (\w+)", cell, re.M)}
    task = re.search(r"^task: *([\w-]+\.py):(\w+)", configuration, re.M)
    if not task or task[2] not in defined:
        wanted = (
            f"the class {task[2]}, which `task:` names"
            if task
            else "a class for `task: my_task.py:CLASS`"
        )
        what = f"No cell that was run defines {wanted} in the configuration. Classes of cells: "
        advice = "Run the cell of yours, and write its name behind `task: my_task.py:`."
        raise BadInput(f"{what}{', '.join(defined) or 'none'}. {advice}")
    disk.make_folders(path.parent)
    for place, text in ((path.with_name(task[1]), defined[task[2]]), (path, configuration)):
        disk.write_text(place, text.strip() + "\n")
    print(
        f"The cell of {task[2]} is now the file {path.with_name(task[1])}, and its configuration {path}."
    )


def configure(workload: str, home: Path, parameters: Parameters) -> Config:
    """Returns the configuration of the parameters cell, below `home`. Raises BadInput for a queue of runs."""
    path, overrides = _file_and_overrides(workload, home, parameters)
    config = load_config(path, overrides)
    if has_queue(path, config):
        what = f"This notebook trains one run, and its parameters ask for a queue (in {path.name}, or in OVERRIDES)"
        command = f"{sys.executable} -m trainbook.command train {shlex.quote(str(path.absolute()))}"
        train = f"!cd {shlex.quote(str(home))} && {command}"
        raise BadInput(
            f"{what}. Take queue.* out, or train the queue from a cell, each override as --set:\n{train}"
        )
    return config


def configure_queue(workload: str, home: Path, parameters: Parameters) -> list[queue.Entry]:
    """Returns the runs of the queue of the parameters cell; prints the same, and earlier runs. Raises BadInput."""
    return queue.entries(*_file_and_overrides(workload, home, parameters))


def _file_and_overrides(
    workload: str, home: Path, parameters: Parameters
) -> tuple[Path, dict[str, Any]]:
    """Returns the configuration file and the overrides by dotted key, those of a plan included; prints them."""
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
    file_name, planned = widgets.find(
        folder, path.stem, lambda plan: load_config(path, plan | overrides)
    ) or ("", {})
    for key, value in planned.items():
        but = ", but it is overridden" if key in overrides else ""
        print(f"Plan {printable(file_name)}: {printable(key)} = {value!r}{but}")
    return path, {**planned, **overrides}


def default_config(workload: str, has_gpu: bool, has_small: bool) -> tuple[str, str]:
    small = f"{workload}_small.yaml"
    if has_small and not has_gpu:
        return f"configs/{small}", "there is no GPU, so this is the small size for a laptop"
    why = "a GPU is there" if has_gpu else f"there is no GPU, and no {small} for such a machine"
    return f"configs/{workload}.yaml", why


def plan(run: launch.Run) -> None:
    """Shows the plan for this machine's GPU, or without a GPU for Kaggle's T4s; prints why if there is none."""
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
    again = {
        "interrupted": "this cell again to continue",
        "deadline": "again in a new session, with this output",
    }
    if summary.reason in again:
        way = f": everything is saved. Run {again[summary.reason]}."
    else:
        way = "."
    return f"{summary.reason} at step {summary.step:,} of {summary.max_steps:,}{way} {summary.why_early}".rstrip()


def picture(path: Path | io.BytesIO) -> Any:
    """Returns a picture as a PNG of 256 colours, or a JPEG of half the size: Kaggle takes notebooks of 1 MB."""
    import PIL.Image  # which matplotlib brings along
    from IPython import display

    drawn = PIL.Image.open(path).convert("RGB")
    small = io.BytesIO()
    drawn.quantize(256).save(small, "PNG", optimize=True)
    if small.tell() <= _LARGE_PICTURE:
        return display.Image(data=small.getvalue(), format="png")
    half = drawn.resize((drawn.width // 2, drawn.height // 2), PIL.Image.Resampling.LANCZOS)
    small = io.BytesIO()
    half.save(small, "JPEG", quality=80, optimize=True)
    return display.Image(data=small.getvalue(), format="jpeg", width=drawn.width)


def compare(summary: Summary) -> str:
    """Returns the test metrics beside the baseline, and the task's report; or why there are none yet."""
    if summary.reason != "completed":
        left = summary.max_steps - summary.step
        return f"The run stopped ({summary.reason}) with {left:,} steps left; the test comes when it is completed."
    if summary.missing and not summary.metrics:
        why = "; ".join(f"{name} failed ({error})" for name, error in summary.missing.items())
        return (
            f"The run is completed, but {why}. Correct it and run again: nothing is trained again."
        )
    return results(summary)


def runs(run: launch.Run) -> str:
    """Returns a row for each run that `run.on_change: new` made: state, test metrics, what differs from the first."""
    made = list[tuple[Path, Summary]]()
    shown = run.task.shown
    for name in made_names(
        with_changes(run.config, {"run.name": run.base_name or run.config.run.name})
    ):
        places = run_folders(with_changes(run.config, {"run.name": name}))
        made += [
            (place, summary)
            for place in places
            if (summary := Summary.read(place)) and summary.identity
        ][:1]
    rows = [("run", "state", *shown, "what differs from the first")]
    for folder, summary in made:
        first, before = made[0]
        different, _ = identity.compare(before.identity, summary.identity, is_completed=True)
        differs = [
            identity.in_a_line({k: v for k, v in different.items() if k != "code of the task"})
        ]
        differs += [_edit(first / CODE, folder / CODE)] if "code of the task" in different else []
        scores = (
            f"{summary.metrics[name]:.3f}" if name in summary.metrics else "" for name in shown
        )
        state = f"{summary.reason} {summary.step:,}/{summary.max_steps:,}"
        rows.append((summary.run, state, *scores, ", ".join(filter(None, differs))))
    if len(made) > 1:
        return aligned(rows, left={0, 1, len(rows[0]) - 1})
    return "There is one run so far. Edit the model or a setting, and run all again: both are compared here."


def _edit(before: Path, after: Path) -> str:
    """Returns the first edit in the code of a task, as `nn.ReLU() -> nn.GELU()`, and how many more lines differ."""
    paths = (sorted(code.rglob("*.py")) for code in (before, after))
    old, new = (
        [line for path in some for line in path.read_text("utf-8", "replace").splitlines()]
        for some in paths
    )
    lines = [*difflib.unified_diff(old, new, n=0, lineterm="")][2:]  # behind the two names of files
    sides = [[line[1:] for line in lines if line[0] == sign and line[1:].strip()] for sign in "-+"]
    old, new = (" ".join(side[:1]).split() for side in sides)
    for place in (0, -1):  # the words that both lines begin and end with
        while old and new and old[place] == new[place]:
            old.pop(place), new.pop(place)
    count = max(map(len, sides)) - 1
    edit = " -> ".join(
        printable(" ".join(words).strip(",") or "-", most=60) for words in (old, new)
    )
    return f"code: {edit}{f' and {count} more lines' if count > 0 else ''}"
