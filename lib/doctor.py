"""The doctor: what a machine has for training, each finding with a verdict and what to do about it.

Nothing here runs a kernel, asks a host for anything or prints the value of an environment variable.
"""

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch

from lib import config as configs
from lib import dependencies, files, launch, machine, memory, platform, progress
from lib import session as sessions
from lib.config import Config
from lib.errors import BadInput
from lib.memory import GIB
from lib.platform import FACTS, GB, Platform

Verdict = Literal["ok", "warning", "bad"]

_WIDTH = 100  # columns of the table: what a notebook's output cell shows without wrapping
_SHM = Path("/dev/shm")

# Own choices. Below the first number a run is bound to fail, below the second it may.
_RAM_BYTES = (1 * GIB, 4 * GIB)
_OUTPUT_BYTES = (GB // 2, 5 * GB)  # GraphMER's checkpoint has 1.1 GB, and two are there while one is replaced
_SCRATCH_BYTES = (GB // 10, 2 * GB)
_SHM_BYTES = GIB
_SHORT_SESSION_SECONDS = 3600.0
_INTERNET_SECONDS = 2.0


@dataclass(frozen=True)
class Check:
    """One finding: `bad` is what a run would fail on, `advice` says in sentences what to do."""

    name: str
    value: str
    verdict: Verdict = "ok"
    advice: str = ""


Sections = Mapping[str, Sequence[Check]]


# --- what is printed --------------------------------------------------------------------------------------------------


def table(sections: Sections) -> str:
    """Aligned text for a terminal or a notebook: verdict, name and value in a line, what to do below it."""
    name_width = max(len(check.name) for checks in sections.values() for check in checks)
    lines = []
    for title, checks in sections.items():
        lines += [title, *(line for check in checks for line in _rows(check, name_width)), ""]
    return "\n".join([*lines, _summary([check for checks in sections.values() for check in checks])])


def _rows(check: Check, name_width: int) -> list[str]:
    shown = "BAD" if check.verdict == "bad" else check.verdict
    head = f"  {shown:<7}  {check.name:<{name_width}}  "
    advice = _wrapped(check.advice, len(head), "> ") if check.advice else []
    value = _wrapped(check.value, len(head))
    return [head + value[0].lstrip(), *value[1:], *advice]


def _wrapped(text: str, indent: int, mark: str = "") -> list[str]:
    blank = " " * indent
    wrapped: list[str] = []
    for line in text.splitlines() or [""]:
        wrapped += textwrap.wrap(
            line, _WIDTH, initial_indent=blank + mark, subsequent_indent=blank + " " * len(mark), break_on_hyphens=False
        )
    return wrapped or [""]


def _summary(checks: Sequence[Check]) -> str:
    count = Counter(check.verdict for check in checks)
    words = {"bad": "bad", "warning": "to look at"}
    told = [f"{count[verdict]} {word}" for verdict, word in words.items() if count[verdict]]
    return f"{len(checks)} checks: {', '.join(told) or 'all is well'}."


def as_json(sections: Sections) -> str:
    """{"verdict": the worst one, "checks": [{"section", "name", "value", "verdict", "advice"}, ...]}."""
    rows = [{"section": title.lower(), **asdict(check)} for title, checks in sections.items() for check in checks]
    worst = max((check.verdict for checks in sections.values() for check in checks), key=_severity)
    return json.dumps({"verdict": worst, "checks": rows}, indent=1)


def amount(count: float) -> str:
    """Bytes for a person, in the units of a disk."""
    return f"{count / GB:,.1f} GB" if count >= GB else f"{count / 1e6:,.1f} MB"


def _severity(verdict: Verdict) -> int:
    return ("ok", "warning", "bad").index(verdict)


def exit_code(sections: Sections) -> int:
    """2 where anything is bad, otherwise 0: a warning does not keep a run from its end."""
    return 2 if any(check.verdict == "bad" for checks in sections.values() for check in checks) else 0


def examine(config: Config | None = None) -> dict[str, list[Check]]:
    """Machine and versions; `config` gives output folder, session and loader workers. Raises BadInput on a TPU."""
    return {"Machine": check_machine(config), "Versions": check_versions()}


def admit(config: Config) -> None:
    """The GPU check of a notebook: prints the findings. Raises BadInput, which stops "run all", on what is bad."""
    sections = examine(config)
    print(table(sections))
    if bad := [check for checks in sections.values() for check in checks if check.verdict == "bad"]:
        raise BadInput("\n".join(f"{check.name}: {check.value}. {check.advice}" for check in bad))


# --- the machine ------------------------------------------------------------------------------------------------------


def check_machine(config: Config | None = None) -> list[Check]:
    """What the machine has; quick, without a kernel, on any machine. Raises BadInput on a TPU runtime."""
    here = platform.detect()
    machine.refuse_tpu()
    output = launch.output_dir(config) if config else here.output_dir
    asked = [
        ("platform", lambda: check_platform(here)),
        ("GPU", lambda: check_gpu(here)),
        *_gpu_checks(),
        ("RAM", check_ram),
        ("CPUs", lambda: check_cpus(config)),
        ("/dev/shm", lambda: check_shm(config)),
        ("output folder", lambda: check_folder("output folder", output, _OUTPUT_BYTES)),
        ("scratch folder", lambda: check_folder("scratch folder", here.scratch_dir, _SCRATCH_BYTES)),
        ("output budget", lambda: check_budget(here)),
        ("internet", lambda: check_internet(here)),
        ("inputs", lambda: check_inputs(here)),
        ("session", lambda: check_session(config)),
    ]
    return [told(name, check) for name, check in asked]


def told(name: str, check: Callable[[], Check]) -> Check:
    """The check's finding; that it could not be had is one too: a doctor who faints helps nobody."""
    try:
        return check()
    except Exception as error:  # of drivers and file systems, in many classes
        return Check(name, f"could not be found out ({type(error).__name__}: {error})", "warning")


def check_platform(here: Platform) -> Check:
    limit = f"{here.session_minutes:.0f} minutes a session" if here.session_minutes else "no session limit"
    return Check("platform", f"{here.name}{' (batch run)' if here.batch else ''}, {limit}")


def check_gpu(here: Platform) -> Check:
    """The cards that torch can use, or why there is none although the driver sees some."""
    if found := machine.gpus():
        counted = Counter(map(str, found))
        return Check("GPU", ", ".join(f"{number} x {card}" for card, number in counted.items()))
    seen = machine.driver()
    if seen and seen.names:
        return _unusable_gpu(seen)
    advice = {
        "kaggle": "Choose Settings > Accelerator > GPU T4 x2 and run again.",
        "colab": "Choose Runtime > Change runtime type > T4 GPU and run again.",
        "local": "The _small configurations are made for this; with a card, see that its driver is installed.",
    }
    return Check("GPU", "none: training runs on the CPU", "warning", advice[here.name])


def _unusable_gpu(seen: machine.Driver) -> Check:
    value = f"the driver sees {', '.join(seen.names)}, PyTorch cannot use it"
    if torch.version.cuda is None:
        advice = f"PyTorch {torch.__version__} is built without CUDA. Install a CUDA build by the steps on pytorch.org."
        return Check("GPU", value, "warning", advice)
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return Check("GPU", value, "warning", "CUDA_VISIBLE_DEVICES is set, and may hide it. Unset it.")
    advice = (
        f"PyTorch {torch.__version__} is built for CUDA {torch.version.cuda}, and driver {seen.version} runs CUDA up "
        f"to {machine.dotted(seen.cuda)}. Install a newer driver, or a PyTorch build for an older CUDA."
    )
    return Check("GPU", value, "bad", advice)


def _gpu_checks() -> list[tuple[str, Callable[[], Check]]]:
    """What is asked of cards only."""
    try:
        count = len(machine.gpus())
    except Exception:  # `check_gpu` asks again, and says it
        return []
    if not count:
        return []
    each = [(f"GPU {index} memory", lambda index=index: check_gpu_memory(index)) for index in range(count)]
    return [("kernels", check_kernels), ("bf16", check_bf16), ("driver", check_driver), *each]


def check_kernels() -> Check:
    """Whether this build of torch has kernels for each card: asked by name, before the first one would fail."""
    built = torch.cuda.get_arch_list()
    cards = {gpu.capability: gpu for gpu in machine.gpus()}
    found = {capability: machine.fitting_kernel(capability, built) for capability in cards}
    has = f"PyTorch {torch.__version__} has {', '.join(built) or 'none'}"
    if missing := [capability for capability, kernel in found.items() if kernel is None]:
        names = " and ".join(f"{cards[c].name} (capability {machine.dotted(c)})" for c in missing)
        wanted = " and ".join(f"sm_{c[0]}{c[1]}" for c in missing)
        advice = (
            "The first kernel would fail with 'no kernel image is available'. On Kaggle choose Settings > Accelerator "
            f"> GPU T4 x2; elsewhere install a PyTorch build whose torch.cuda.get_arch_list() names {wanted}."
        )
        return Check("kernels", f"none for {names}: {has}", "bad", advice)
    kernels = ", ".join(f"{kernel} for capability {machine.dotted(c)}" for c, kernel in found.items())
    if any(str(kernel).startswith("compute") for kernel in found.values()):
        advice = f"{has}: the driver compiles every kernel on its first use. A build for this card starts faster."
        return Check("kernels", kernels, "warning", advice)
    return Check("kernels", kernels)


def check_bf16() -> Check:
    """True bf16 units, which `torch.cuda.is_bf16_supported()` does not tell: it counts emulation in."""
    have = [f"{gpu.name}: {'yes' if gpu.capability >= (8, 0) else 'emulated only'}" for gpu in machine.gpus()]
    trains = memory.precision("auto", torch.device("cuda", 0))
    return Check("bf16", f"{', '.join(dict.fromkeys(have))}; precision auto trains in {trains}")


def check_driver() -> Check:
    seen = machine.driver()
    if seen is None:
        value = "NVML does not answer; free memory is read through PyTorch"
        has_package = importlib.util.find_spec("pynvml") is not None
        advice = "The container lacks libnvidia-ml.so.1." if has_package else "pip install nvidia-ml-py."
        return Check("driver", value, "warning", f"{advice} Nothing but the use of the GPU in metrics.csv is lost.")
    value = f"{seen.version}, for CUDA up to {machine.dotted(seen.cuda)}; PyTorch has {torch.version.cuda}"
    return Check("driver", value)


def check_gpu_memory(index: int) -> Check:
    """Free memory of a card, whoever took the rest."""
    reading = memory.readings()[1 + index]
    value = f"{(reading.total - reading.used) / GIB:.2f} of {reading.total / GIB:.2f} GiB free"
    if reading.share <= 0.2:
        return Check(f"GPU {index} memory", value)
    if torch.cuda.memory_reserved(index) > reading.used / 2:
        advice = f"This process has {reading.detail}. Call memory.clear_memory(), or restart this kernel."
    else:
        advice = f"This process has {reading.detail}. Restart other kernels, and end other programs that use the card."
    return Check(f"GPU {index} memory", value, "bad" if reading.share > 0.9 else "warning", advice)


def check_ram() -> Check:
    found = machine.ram()
    of = "the container's" if found.limited else "the machine's"
    value = f"{found.available / GIB:.2f} of {of} {found.total / GIB:.2f} GiB free"
    advice = "Close other notebooks and programs; at its end the system kills the run."
    return Check("RAM", value, *_short_of(found.available, _RAM_BYTES, advice))


def _short_of(bytes_free: int, limits: tuple[int, int], advice: str) -> tuple[Verdict, str]:
    least, comfortable = limits
    if bytes_free >= comfortable:
        return "ok", ""
    return "bad" if bytes_free < least else "warning", advice


def check_cpus(config: Config | None) -> Check:
    """CPUs beside the loader workers that the configuration asks for."""
    usable, whole = machine.cpus(), os.cpu_count() or 1
    of = f" of the machine's {whole}" if usable < whole else ""
    value = f"{usable:g}{of}; PyTorch computes in {torch.get_num_threads()} threads"
    workers = config.data.num_workers if config else 0
    if workers > usable:
        advice = f"data.num_workers is {workers}. Write {max(0, int(usable) - 1)}, or they wait for each other."
        return Check("CPUs", value, "warning", advice)
    if torch.get_num_threads() > max(1.0, usable):
        return Check("CPUs", value, "warning", f"Set OMP_NUM_THREADS to {max(1, int(usable))} before Python starts.")
    return Check("CPUs", value)


def check_shm(config: Config | None) -> Check:
    """The shared memory through which loader workers hand over batches."""
    workers = config.data.num_workers if config else None
    if sys.platform != "linux" or workers == 0:
        return Check("/dev/shm", "not needed: " + ("data.num_workers is 0" if workers == 0 else "this is no Linux"))
    advice = "Set data.num_workers to 0, or give the container more (docker run --shm-size=2g)."
    if not _SHM.is_dir():
        value = "not there: loader workers cannot hand over their batches"
        return Check("/dev/shm", value, "bad" if workers else "warning", advice)
    free = shutil.disk_usage(_SHM).free
    value = f"{free / GIB:.2f} GiB free"
    if free >= _SHM_BYTES:
        return Check("/dev/shm", value)
    return Check("/dev/shm", value, "warning", f"A batch that does not fit kills a loader worker. {advice}")


def check_folder(name: str, folder: Path, limits: tuple[int, int]) -> Check:
    """Room in a folder that may not be there yet, and whether it can be written to; nothing is left behind."""
    existing = next(path for path in (folder, *folder.absolute().parents) if files.exists(path))
    if problem := unwritable(existing):
        advice = "Give another folder: " + ("TRAINBOOK_CACHE." if name.startswith("scratch") else "output_dir.")
        return Check(name, f"{folder} cannot be written to ({problem})", "bad", advice)
    free = shutil.disk_usage(existing).free
    advice = f"Delete what is no longer needed on the disk of {existing}."
    return Check(name, f"{folder}, {amount(free)} free", *_short_of(free, limits, advice))


def unwritable(folder: Path) -> str:
    """Why a folder cannot be written to, or nothing: by a file without a name, which is gone when it is closed."""
    if not folder.is_dir():
        return f"{folder} is no folder"
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(64 * 1024))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        return error.strerror or str(error)
    return ""


def check_budget(here: Platform) -> Check:
    """What the platform allows in its output folder: bytes, and a number of files."""
    if here.output_bytes is None and here.output_files is None:
        return Check("output budget", f"no limit of bytes or files ({here.name})")
    size, number = files.held(here.output_dir)
    of_bytes = f" of {here.output_bytes / GB:.0f}" if here.output_bytes else ""
    of_files = f" of {here.output_files}" if here.output_files else ""
    value = f"{size / GB:.2f}{of_bytes} GB in {number:,}{of_files} files"
    full, many = (
        had / (limit or float("inf")) for had, limit in ((size, here.output_bytes), (number, here.output_files))
    )
    if max(full, many) < 0.8:
        return Check("output budget", value)
    verdict: Verdict = "bad" if full > 0.98 else "warning"  # the number of files is a soft limit
    return Check("output budget", value, verdict, f"Delete or pack what is no longer needed in {here.output_dir}.")


def check_internet(here: Platform) -> Check:
    """Whether packages could be installed. No host is asked: training needs none, and `pip` says it best itself.

    Only Kaggle has a switch; there its own name is looked up, because it is not resolved while the switch is off.
    """
    advice = "Nothing here needs it."
    if here.name == "kaggle":
        if machine.resolves(str(FACTS["kaggle_host"].value), _INTERNET_SECONDS):
            return Check("internet", "on")
        return Check("internet", "off", "ok", f"{advice} To install packages, switch it on: Settings > Internet.")
    if machine.has_route():
        return Check("internet", "there is a way out; no host was asked")
    return Check("internet", "no way out of this machine", "ok", f"{advice} Packages cannot be installed.")


def check_inputs(here: Platform) -> Check:
    """Names of the mounted inputs."""
    if here.input_dir is None:
        return Check("inputs", f"nothing is mounted on {here.name}; data.dir names the data")
    names = [str(path.relative_to(here.input_dir)) for path in platform.mounted(here)]
    if not names:
        return Check("inputs", "none: the embedded data is trained on", "ok", "Add Input mounts data of your own.")
    return Check("inputs", f"{len(names)}: {', '.join(names)}")


def check_session(config: Config | None) -> Check:
    """The time that is left, by the clock that ends the run."""
    options = config.session if config else configs.Session()
    session = sessions.start(options.minutes, options.margin_seconds)
    left = session.remaining()
    if left == float("inf"):
        return Check("session", "has no end")
    value = f"{progress.duration(max(0.0, left))} left; {options.margin_seconds:.0f} s of it are kept for the last save"
    if left >= _SHORT_SESSION_SECONDS:
        return Check("session", value)
    verdict: Verdict = "bad" if left <= options.margin_seconds else "warning"
    advice = "Start a new session (restart the machine, not only the kernel); a run goes on where it stopped."
    return Check("session", value, verdict, advice)


# --- versions ---------------------------------------------------------------------------------------------------------


def check_versions() -> list[Check]:
    """Python and packages against what the project supports."""
    return [check_python(), *(check_package(*item) for item in dependencies.OLDEST.items()), *_beside()]


def check_python() -> Check:
    oldest, newest = dependencies.PYTHON
    value = f"{machine.dotted(sys.version_info[:3])} (supported: {machine.dotted(oldest)} to {machine.dotted(newest)})"
    if oldest <= sys.version_info[:2] <= newest:
        return Check("Python", value)
    verdict: Verdict = "bad" if sys.version_info[:2] < oldest else "warning"
    return Check("Python", value, verdict, f"Take Python {machine.dotted(newest)}; with this one nothing was tested.")


def check_package(project: str, oldest: str) -> Check:
    """The version that is installed, which is read from its metadata: nothing is imported."""
    supported = f"(supported: {oldest} and later)"
    install = f"pip install '{project}>={oldest}'."
    try:
        found = importlib.metadata.version(project)
    except importlib.metadata.PackageNotFoundError:
        verdict: Verdict = "bad" if project in dependencies.PACKAGES.values() else "warning"
        return Check(project, f"missing {supported}", verdict, install)
    if project == "torch":  # never by pip: that would replace the platform's CUDA build
        install = "Choose a newer image, or install it by the steps on pytorch.org."
        supported = f"{f'with CUDA {torch.version.cuda}' if torch.version.cuda else 'without CUDA'} {supported}"
    if _parts(found) >= _parts(oldest):
        return Check(project, f"{found} {supported}")
    return Check(project, f"{found} {supported}", "warning", f"It is older than what was tested. {install}")


def _parts(version: str) -> tuple[int, ...]:
    """The numbers that a version starts with: (2, 13, 0) of 2.13.0+cpu."""
    return tuple(int(number) for number in re.findall(r"\d+", re.split(r"[^\d.]", version)[0]))


def _beside() -> list[Check]:
    """Packages that lib does not need, and that bug reports name."""
    found = []
    for project in ("transformers", "torchvision", "IPython"):
        try:
            found.append(Check(project, f"{importlib.metadata.version(project)} (not needed)"))
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
