"""What the checklists of the field ask a person to tick before quota is spent, as one command. Every line says what to
do, also where that is nothing."""

import ast
import http.client
import importlib.util
import json
import math
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from lib import launch, planner
from lib.config import Config
from lib.errors import BadInput, TrainingFailed
from lib.kaggle import client, credentials, image, kernel
from lib.machine.facts import CARDS, FACTS
from lib.task import load_config

_SECONDS = 10  # that an address may take to answer
_LOCAL_PATH = re.compile(
    r"(?<![\w.:/$~-])(/(home|Users|mnt|media|root|data|opt|srv|scratch)/[^\s'\"`)]*|[A-Za-z]:\\\\?\w[^\s'\"`)]*)"
)
_ADDRESS = re.compile(r"https?://[^\s'\"`)>\]]+")
_NOTHING = "Nothing to do."
# fp32 weights and AdamW's two moments in a checkpoint; weights alone in the best ones and in the archive
_CHECKPOINT_BYTES, _WEIGHT_BYTES = 12, 4


@dataclass(frozen=True)
class Line:
    """One thing that was looked at. `wrong` would spend quota for nothing; `look` could not be decided from here."""

    verdict: Literal["fine", "look", "wrong"]
    what: str
    advice: str = _NOTHING


def check(
    path: Path, settings: Mapping[str, object], data: str = "", steps_per_second: float = 0.0, urls: Sequence[str] = ()
) -> list[Line]:
    """Looks at a built notebook, the Kaggle-size configuration that it carries, data and account."""
    notebook = json.loads(path.read_text("utf-8"))
    carried = carried_files(notebook)
    on_kaggle = notebook["metadata"].get("kaggle", {})
    lines = [_fresh(path), _size(path), _carried(carried), _credentials(path)]
    lines += [_local_paths(notebook, carried), _imports(notebook, carried)]
    configs = [name for name in carried if name.startswith("configs/") and not name.endswith("_small.yaml")]
    for name in configs:
        lines += _configuration(kernel.ROOT / name, settings, data, steps_per_second, on_kaggle)
    if not configs:
        lines.append(Line("fine", "The notebook carries no configuration of Kaggle size: it trains nothing there."))
    texts = [_code(notebook), *(text for name, text in carried.items() if name.startswith("configs/"))]
    addresses = sorted(
        {*urls, *(found for text in texts for found in _ADDRESS.findall(text) if _downloads(found, text))}
    )
    lines += _addresses(addresses, bool(on_kaggle.get("isInternetEnabled")))
    return [*lines, *_account()]


def show(lines: Sequence[Line]) -> str:
    """A line each: the verdict, what was found, what to do; and how many are wrong."""
    wrong = sum(line.verdict == "wrong" for line in lines)
    looks = sum(line.verdict == "look" for line in lines)
    rows = [f"{line.verdict:>5}  {line.what} {line.advice}" for line in lines]
    total = f"{len(lines)} checks: {wrong} wrong, {looks} to look at." + ("" if wrong else " Ready to push.")
    return "\n".join([*rows, total])


# --- the notebook -----------------------------------------------------------------------------------------------------


def carried_files(notebook: Mapping[str, Any]) -> dict[str, str]:
    """The files in the carrier cell, by path; none where there is no such cell."""
    for cell in notebook["cells"]:
        if "carrier" in cell["metadata"].get("tags", []):
            for node in ast.parse("".join(cell["source"])).body:
                if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "FILES":
                    return ast.literal_eval(node.value)
    return {}


def _code(notebook: Mapping[str, Any]) -> str:
    """All cells but the carrier's."""
    cells = [one for one in notebook["cells"] if "carrier" not in one["metadata"].get("tags", [])]
    return "\n".join("".join(one["source"]) for one in cells)


def _builder() -> ModuleType | None:
    spec = importlib.util.spec_from_file_location("build_notebooks", kernel.ROOT / "build_notebooks.py")
    if spec is None or spec.loader is None or importlib.util.find_spec("jupytext") is None:
        return None
    if str(kernel.ROOT) not in sys.path:
        sys.path.append(str(kernel.ROOT))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _fresh(path: Path) -> Line:
    source = kernel.ROOT / "notebooks_src" / f"{path.stem}.py"
    builder = _builder()
    if not source.is_file() or builder is None:
        return Line("look", f"{path.name} has no source here to compare it with.", "See that it is the one you mean.")
    if builder.notebook_text(source) != path.read_text("utf-8"):
        return Line(
            "wrong", f"{path.name} is not what its source, lib and configs would give now.", "Run: make notebooks"
        )
    return Line("fine", f"{path.name} is fresh.")


def _size(path: Path) -> Line:
    size, limit = path.stat().st_size, int(FACTS["kaggle_notebook_bytes"].value)
    if size >= limit:
        return Line(
            "wrong", f"{path.name} has {size:,} bytes; Kaggle has refused {limit:,}.", "Carry less, see its header."
        )
    return Line("fine", f"{path.name} has {size:,} bytes of {limit:,}.")


def _carried(carried: Mapping[str, str]) -> Line:
    if "lib/__init__.py" not in carried:
        return Line(
            "wrong", "The notebook does not carry lib.", "Tag a cell of its source `carrier`, then: make notebooks"
        )
    size = sum(len(text.encode()) for text in carried.values())
    return Line("fine", f"It carries {len(carried)} files of lib and configs, {size:,} bytes.")


def _credentials(path: Path) -> Line:
    try:
        credentials.refuse_in_files([path])
    except BadInput as refusal:
        return Line("wrong", str(refusal), "Use Add-ons > Secrets on Kaggle instead, and renew the credential.")
    return Line("fine", "No credential of your environment stands in the notebook.")


def _local_paths(notebook: Mapping[str, Any], carried: Mapping[str, str]) -> Line:
    texts = {"the notebook": _code(notebook), **{n: t for n, t in carried.items() if n.startswith("configs/")}}
    found = [f"{match[0]} in {name}" for name, text in texts.items() for match in _LOCAL_PATH.finditer(text)]
    if found:
        advice = "Take them out: data is found by itself, or named as owner/slug in DATA_DIR."
        return Line("wrong", f"Paths of one machine: {', '.join(found)}.", advice)
    return Line("fine", "No path of one machine in the notebook and its configurations.")


def _imports(notebook: Mapping[str, Any], carried: Mapping[str, str]) -> Line:
    texts = [_code_only(notebook), *(text for name, text in carried.items() if name.endswith(".py"))]
    names = {name for text in texts for name in _imported(text)} - set(sys.stdlib_module_names) - {"lib", "__future__"}
    absent = sorted(n for n in names if n in image.PACKAGES and image.PACKAGES[n].version is None)
    unknown = sorted(names - set(image.PACKAGES))
    if absent:
        return Line(
            "wrong", f"Kaggle's image lacks {', '.join(absent)}.", "Switch the internet on, or mount their wheels."
        )
    if unknown:
        advice = "See on Kaggle, and add them to lib/kaggle/image.py."
        return Line("look", f"Whether Kaggle's image has {', '.join(unknown)} is not in the table.", advice)
    dates = {image.PACKAGES[name].checked for name in names}
    return Line(
        "fine", f"Kaggle's image has all {len(names)} packages that are imported (checked {max(dates, default='-')})."
    )


def _code_only(notebook: Mapping[str, Any]) -> str:
    cells = [one for one in notebook["cells"] if one["cell_type"] == "code"]
    return "\n".join("".join(one["source"]) for one in cells if "carrier" not in one["metadata"].get("tags", []))


def _imported(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


# --- the configuration, its data, time and space ----------------------------------------------------------------------


def _configuration(
    path: Path, settings: Mapping[str, object], data: str, steps_per_second: float, on_kaggle: Mapping[str, Any]
) -> list[Line]:
    overrides = {**settings, **({"data.dir": data} if data else {})}
    try:
        config = load_config(path, overrides)
    except BadInput as refusal:
        return [Line("wrong", f"{path.name} is refused: {refusal}", "Mend what the message names.")]
    lines = [Line("fine", f"{path.name} is valid.")]
    lines += [_gpu(config, on_kaggle), _precision(config), _saves(config)]
    try:
        run = launch.prepare(config if data else load_config(path, {**overrides, "data.dir": ""}))
    except BadInput as refusal:
        return [*lines, Line("wrong", f"The data is refused: {refusal}", "Mend what the message names.")]
    planned, expected = _memory(run.config)
    lines += [_data(config, run, data), planned, _time(run.config, steps_per_second, expected)]
    return [*lines, _space(run)]


def _gpu(config: Config, on_kaggle: Mapping[str, Any]) -> Line:
    cards, slots = int(FACTS["kaggle_gpus"].value), config.training.micro_batch_slots
    if not on_kaggle.get("isGpuEnabled"):
        return Line("wrong", "The notebook does not ask for a GPU.", "Write `gpu: true` into its source's header.")
    if slots % cards:
        advice = f"Set training.micro_batch_slots to {cards}, or a multiple of it."
        return Line("wrong", f"{slots} slots cannot be dealt to {cards} T4s: one would idle.", advice)
    return Line("fine", f"GPU T4 x{cards} is asked for, and {slots} slots keep {cards} cards busy.")


def _precision(config: Config) -> Line:
    asked = config.training.precision
    if asked == "bf16":
        return Line("wrong", "training.precision is bf16, which a T4 only emulates.", "Set it to auto (fp16 on a T4).")
    if asked == "fp32":
        t4 = CARDS["t4"]
        advice = f"Set it to auto, unless fp16 fails: {t4.fp16_tflops:.0f} TFLOP/s at best against {t4.fp32_tflops}."
        return Line("look", "training.precision is fp32.", advice)
    return Line("fine", f"training.precision is {asked}: fp16 on a T4.")


def _saves(config: Config) -> Line:
    saved, limit = config.checkpoint, float(FACTS["kaggle_run_minutes"].value)
    if not saved.keep_last:
        return Line("wrong", "checkpoint.keep_last is 0: nothing to go on with.", "Set it to 1 or more.")
    if config.session.minutes > limit:
        advice = "Set it to 0, which is the platform's limit."
        return Line(
            "wrong", f"session.minutes {config.session.minutes:g} is longer than the {limit:.0f} there are.", advice
        )
    return Line("fine", f"Checkpoints are kept ({saved.keep_last} and {saved.keep_best} best), and the clock is on.")


def _data(config: Config, run: launch.Run, data: str) -> Line:
    sizes = ", ".join(f"{len(part):,} {name}" for name, part in run.task.datasets().items())
    if data:
        return Line(
            "fine", f"{data} is valid: {sizes}.", "Upload it: python -m lib kaggle dataset, and --dataset when pushing."
        )
    if config.data.dir:
        advice = "Give the folder here with --data to have it validated."
        return Line("look", f"data.dir is {config.data.dir}, which is read on Kaggle only.", advice)
    return Line(
        "look", f"No data is given: the embedded default is used ({sizes}).", "Give your own with --data, or leave it."
    )


def _memory(config: Config) -> tuple[Line, float]:
    """Whether the step fits a T4 by the planner's tracing, and the steps/s that it expects there (0: none)."""
    try:
        plan = planner.plan(config, "t4")
    except BadInput as refusal:
        return Line("wrong", f"The step does not fit a T4: {refusal}", "Change what the message names."), 0.0
    except TrainingFailed as failure:
        last = str(failure).splitlines()[-1]
        return Line("wrong", f"A training step fails: {last}.", "See `python -m lib plan` with the same keys."), 0.0
    peak = plan.chosen.prediction.peak_bytes / 2**30
    what = f"Micro-batch {plan.chosen.micro_batch} takes {peak:.2f} of {plan.usable_bytes / 2**30:.2f} GiB of a T4."
    return Line("fine", what), 1 / plan.chosen.expected_seconds


def _time(config: Config, measured: float, expected: float) -> Line:
    steps, session = config.training.max_steps, float(FACTS["kaggle_run_minutes"].value) / 60
    speed, origin = (measured, "as you measured") if measured else (expected, "as the planner expects")
    if not speed:
        needed = steps / session / 3600
        advice = "Read the smoke test's line, then give it here as --steps-per-second."
        return Line(
            "look", f"{steps:,} steps fit one session from {needed:.2f} steps/s on; the speed is not known.", advice
        )
    hours = steps / speed / 3600
    sessions, weeks = (
        math.ceil(hours / session),
        math.ceil(hours / float(FACTS["kaggle_gpu_quota_hours"].value)),
    )
    what = (
        f"{steps:,} steps at {speed:.3g} steps/s, {origin}, take {hours:.1f} h: {sessions} session(s), {weeks} week(s) "
        "of quota."
    )
    if sessions > 1:
        return Line("look", what, "Let `python -m lib kaggle chain` go from session to session.")
    return Line("fine", what)


def _space(run: launch.Run) -> Line:
    count = sum(p.numel() for p in run.task.model().parameters())
    kept, best = run.config.checkpoint.keep_last, run.config.checkpoint.keep_best
    # One more than is kept, while a new one is written; the archive holds the best weights once more.
    size = count * (_CHECKPOINT_BYTES * (kept + 1) + _WEIGHT_BYTES * (best + min(1, best) + best))
    limit = int(FACTS["kaggle_output_bytes"].value)
    what = (
        f"{count / 1e6:.1f} M parameters: {kept} + 1 checkpoints of {_CHECKPOINT_BYTES * count / 1e9:.2f} GB, best "
        f"weights and archive take at most {size / 1e9:.1f} GB of {limit / 1e9:.0f}."
    )
    if size > limit:
        return Line("wrong", what, "Lower checkpoint.keep_last or checkpoint.keep_best.")
    return Line("fine", what)


# --- addresses and account --------------------------------------------------------------------------------------------


def _downloads(address: str, text: str) -> bool:
    """Whether an address is data to a program rather than a link in a sentence: it stands in quotes, or as a value."""
    before = text[: text.index(address)]
    return before.endswith(("'", '"', ": "))


def _addresses(addresses: Sequence[str], internet: bool) -> list[Line]:
    if not addresses:
        return [Line("fine", "Nothing is downloaded from an address.")]
    lines = []
    if not internet:
        what = f"{len(addresses)} addresses are to be read, and the notebook's internet is off."
        lines.append(Line("wrong", what, "Push with --internet, or mount the data."))
    with ThreadPoolExecutor(8) as pool:
        return [*lines, *pool.map(answers, addresses)]


def answers(address: str, seconds: float = _SECONDS) -> Line:
    """Whether an address answers a HEAD request (or a GET, where HEAD is not allowed) in time."""
    shown = credentials.clean(address)
    for method in ("HEAD", "GET"):
        try:
            request = urllib.request.Request(address, method=method, headers={"User-Agent": "trainbook-preflight"})
            with urllib.request.urlopen(request, timeout=seconds) as response:
                size = response.headers.get("Content-Length")
                return Line("fine", f"{shown} answers" + (f", {int(size):,} bytes." if size else "."))
        except urllib.error.HTTPError as error:
            if method == "GET" or error.code not in (403, 405, 501):
                what = f"{shown} answers {error.code} {error.reason}."
                return Line("wrong", what, "Correct it, or mount the data instead.")
        except (OSError, ValueError, http.client.HTTPException) as error:
            what = f"{shown} does not answer in {seconds:g} s ({getattr(error, 'reason', error)})."
            return Line("wrong", what, "Try it in a browser; mount the data instead.")
    raise AssertionError("unreachable")


def _account() -> list[Line]:
    try:
        name = client.username()
        quota = client.quota()
    except BadInput as refusal:
        return [Line("look", f"Your account was not asked: {refusal}", "The browser needs none of this.")]
    lines = [Line("fine", f"The kaggle client is signed in as {name}.")]
    if quota is None:
        return [
            *lines,
            Line("look", "Kaggle told no quota.", "See kaggle.com/settings; GPUs need a verified phone number."),
        ]
    left = f"{quota.remaining:.1f} of {quota.total:.0f} GPU hours are left this week."
    if quota.remaining < 1:
        return [*lines, Line("wrong", left, f"Wait for {quota.refreshes or 'the next week'}.")]
    return [*lines, Line("fine", left)]
