"""A notebook on Kaggle: pushed with its parameters, asked for its state, its results brought home."""

import ast
import json
import re
import shutil
import tarfile
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lib import checkpoint
from lib.errors import BadInput
from lib.kaggle import client, credentials
from lib.machine import disk
from lib.machine.facts import FACTS
from lib.report import outputs
from lib.report import summary as summary_file
from lib.report.metrics import read
from lib.report.summary import Summary

ROOT = Path(__file__).resolve().parents[2]  # the checkout
HOME = Path("runs") / "kaggle"  # what belongs to a notebook on Kaggle lies below, in a folder with its slug
_METADATA = "kernel-metadata.json"
_SHORTEST_TITLE = 5  # characters, of a notebook's title and of its slug (kaggle 2.2.4)
_MARK = "# push "  # before the number by which a version is known again


@dataclass(frozen=True)
class Notebook:
    """A built notebook, and what it is to be on Kaggle. `internet` and `gpu` None: as its source says."""

    path: Path
    kernel: str  # owner/slug
    datasets: Sequence[str] = ()  # owner/slug
    kernels: Sequence[str] = ()  # other notebooks whose output is mounted
    gpu: bool | None = None
    internet: bool | None = None
    public: bool = False

    @property
    def folder(self) -> Path:
        return HOME / self.kernel.split("/")[1]


def find(name: str) -> Path:
    """The built notebook of a workload ("graphmer"), of a name ("01_graphmer"), or at a path. Raises BadInput."""
    if name.endswith(".ipynb") and Path(name).is_file():
        return Path(name)
    known = sorted((ROOT / "notebooks").glob("*.ipynb"))
    found = [path for path in known if name in (path.stem, re.sub(r"^\d+_", "", path.stem))]
    if len(found) != 1:
        names = ", ".join(path.stem for path in known)
        raise BadInput(f"There is no notebook {name}. There are: {names}. A path ending in .ipynb is taken, too.")
    return found[0]


def slug_of(path: Path) -> str:
    """notebooks/01_graphmer.ipynb -> trainbook-01-graphmer"""
    return "trainbook-" + re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-")


def kernel_of(name: str, owner: str = "") -> str:
    """owner/slug of a notebook on Kaggle, given so, as a slug, or as the name of a built one. Raises BadInput."""
    if re.fullmatch(r"[\w-]+/[\w-]+", name) and not name.endswith(".ipynb"):
        return name
    try:
        slug = slug_of(find(name))
    except BadInput:
        if not re.fullmatch(r"[a-z0-9-]+", name) or not (owner or "-" in name):
            raise
        slug = name
    return f"{owner or client.username()}/{slug}"


# --- parameters -------------------------------------------------------------------------------------------------------


def parameters(notebook: Mapping[str, Any]) -> dict[str, object]:
    """Names and defaults in the cell that is tagged `parameters`."""
    found: dict[str, object] = {}
    for cell in notebook["cells"]:
        if "parameters" in cell["metadata"].get("tags", []):
            for node in ast.parse("".join(cell["source"])).body:
                target = node.target if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [None])[0]
                if isinstance(target, ast.Name):
                    found[target.id] = ast.literal_eval(node.value)  # type: ignore[attr-defined]
    return found


def read_parameters(pairs: Sequence[str], settings: Sequence[str]) -> dict[str, object]:
    """The parameters of `--param NAME=VALUE` and `--set key=value` (which goes to OVERRIDES). Raises BadInput."""
    given = [_split(pair, "--param takes NAME=VALUE, for example MAX_STEPS=200") for pair in pairs]
    values = {name: yaml.safe_load(text) for name, text in given}
    if settings:
        overrides = {key: yaml.safe_load(text) for key, text in map(split_setting, settings)}
        values["OVERRIDES"] = {**(values.get("OVERRIDES") or {}), **overrides}
    return values


def split_setting(pair: str) -> tuple[str, str]:
    """The dotted key and the text of `--set key=value`. Raises BadInput."""
    return _split(pair, "--set takes key=value, for example training.max_steps=200")


def _split(pair: str, usage: str) -> tuple[str, str]:
    name, equals, value = pair.partition("=")
    if not equals:
        raise BadInput(f"{usage}; it was given {pair!r}.")
    return name, value


def with_parameters(path: Path, values: Mapping[str, object]) -> tuple[str, str]:
    """The notebook's text with a cell of values after its parameters, and the mark by which this push is known.

    Raises BadInput for a name or type that the parameters cell does not have: a misspelt one would change nothing.
    """
    notebook = json.loads(path.read_text("utf-8"))
    known = parameters(notebook)
    for name, value in values.items():
        if name not in known:
            raise BadInput(f"{path.name} has no parameter {name}. It has: {', '.join(known) or 'none'}.")
        wanted = (int, float) if isinstance(known[name], float) or type(known[name]) is int else type(known[name])
        if not isinstance(value, wanted) or isinstance(value, bool) is not isinstance(known[name], bool):
            raise BadInput(f"{name} is like {known[name]!r} in {path.name}; it cannot be {value!r}.")
    mark = _MARK + uuid.uuid4().hex
    lines = ["# Values given on the command line.", *(f"{name} = {value!r}" for name, value in values.items()), mark]
    cell = {
        "cell_type": "code",
        "execution_count": None,
        "id": mark[-8:],
        "metadata": {"tags": ["injected-parameters"]},
        "outputs": [],
        "source": "\n".join(lines),
    }
    cells = notebook["cells"]
    places = [number for number, one in enumerate(cells) if "parameters" in one["metadata"].get("tags", [])]
    cells.insert(places[0] + 1 if places else 0, cell)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", mark


# --- push -------------------------------------------------------------------------------------------------------------


def metadata(notebook: Notebook, own_output: bool) -> dict[str, Any]:
    """kernel-metadata.json. The client takes a missing key as its own default (internet: on), so every key is there."""
    owner, _, slug = notebook.kernel.partition("/")
    if len(slug) < _SHORTEST_TITLE:
        raise BadInput(f"The slug {slug} has fewer than {_SHORTEST_TITLE} characters. Give a longer one with --slug.")
    gpu = uses_gpu(notebook)
    internet = bool(_on_kaggle(notebook).get("isInternetEnabled")) if notebook.internet is None else notebook.internet
    return {
        "id": f"{owner}/{slug}",
        "title": slug.replace("-", " "),  # whose slug is the id's, which Kaggle wants
        "code_file": notebook.path.name,
        "language": "python",
        "kernel_type": "notebook",
        "is_private": not notebook.public,
        "enable_gpu": gpu,
        "enable_tpu": False,
        "enable_internet": internet,
        "machine_shape": FACTS["kaggle_machine_shape"].value if gpu else "",
        "dataset_sources": list(notebook.datasets),
        "competition_sources": [],
        "kernel_sources": [*notebook.kernels, *([notebook.kernel] if own_output else [])],
        "model_sources": [],
    }


def uses_gpu(notebook: Notebook) -> bool:
    """Whether its sessions cost GPU hours."""
    if notebook.gpu is not None:
        return notebook.gpu
    return bool(_on_kaggle(notebook).get("isGpuEnabled"))


def _on_kaggle(notebook: Notebook) -> dict[str, Any]:
    return json.loads(notebook.path.read_text("utf-8"))["metadata"].get("kaggle", {})


def prepare(notebook: Notebook, values: Mapping[str, object], own_output: bool) -> tuple[Path, str]:
    """Writes the folder that is pushed; returns it and the mark of this push. Raises BadInput."""
    text, mark = with_parameters(notebook.path, values)
    limit = int(FACTS["kaggle_notebook_bytes"].value)
    if len(text.encode()) >= limit:
        raise BadInput(f"{notebook.path} would have {len(text.encode()):,} bytes; Kaggle has refused {limit:,}.")
    credentials.refuse_in_text(text, str(notebook.path))
    described = metadata(notebook, own_output)
    folder = notebook.folder / "push"
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / notebook.path.name).write_text(text, "utf-8")
    (folder / _METADATA).write_text(json.dumps(described, indent=1) + "\n", "utf-8")
    return folder, mark


def push(notebook: Notebook, values: Mapping[str, object], own_output: bool) -> client.Pushed:
    """Pushes a notebook, which starts a session. Raises BadInput where one is active, or Kaggle refuses."""
    folder, _ = prepare(notebook, values, own_output)
    state = client.find(notebook.kernel)
    if state and state.active:
        raise BadInput(f"{notebook.kernel} is {state.word.lower()}: a second run at once would use the quota twice.")
    if own_output and not state:
        raise BadInput(f"{notebook.kernel} has no output to go on with yet. Leave --continue out of the first push.")
    return client.push(folder)


def pushed_as(kernel: str) -> str:
    """The mark of the newest version on Kaggle; "" where it was not pushed from here."""
    found = re.search(rf"{_MARK}[0-9a-f]{{32}}", client.source(kernel))
    return found[0] if found else ""


# --- results ----------------------------------------------------------------------------------------------------------

_RESULTS = rf"(^|/)({re.escape(outputs.ARCHIVE)}|{re.escape(summary_file.FILE)}|metrics\.csv)$"
_ALL = r"."
_NO_CHECKPOINTS = r"^(?!.*(^|/)checkpoints/).*$"


@dataclass(frozen=True)
class Fetched:
    """What came home: the folder, the summaries by run, files and bytes, plots."""

    folder: Path
    summaries: dict[str, Summary]
    files: int
    size: int
    plots: list[Path]


def fetch(kernel: str, folder: Path, everything: bool = False) -> Fetched:
    """Downloads a notebook's results, unpacks and checks them; what was in `folder` is replaced when all is well.

    Without `everything`, checkpoints, which are for resuming, stay on Kaggle. Raises BadInput.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as work:
        loose, results = Path(work) / "loose", Path(work) / "results"
        client.output(kernel, loose, _ALL if everything else _RESULTS)
        archive = loose / outputs.ARCHIVE
        if not archive.is_file() and not everything:  # a session that ended before its packaging
            client.output(kernel, loose, _NO_CHECKPOINTS)
        keep_log(loose, kernel)
        results.mkdir()
        if archive.is_file():
            unpack(archive, results)
            archive.unlink()
        summaries = _check(results, loose)
        _merge(loose, results)
        _replace(results, folder)
    size, number = disk.held(folder)
    return Fetched(folder, summaries, number, size, sorted(folder.glob("*/plots/metrics.png")))


def keep_log(folder: Path, kernel: str) -> None:
    """The log of the session as text, session.log, without credentials, in the place of the client's JSON."""
    raw = folder / f"{kernel.split('/')[1]}.log"
    if raw.is_file():
        (folder / "session.log").write_text(client.readable(raw.read_text("utf-8")), "utf-8")
        raw.unlink()


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks an archive of results; nothing in it can be written elsewhere. Raises BadInput."""
    limit = int(FACTS["kaggle_output_bytes"].value)
    try:
        with tarfile.open(archive, "r:gz") as packed:
            members = packed.getmembers()
            if not all(member.isfile() or member.isdir() for member in members):
                raise BadInput(f"{archive.name} holds links or devices, which no run leaves. It was not unpacked.")
            if (size := sum(member.size for member in members)) > limit:
                raise BadInput(f"{archive.name} would unpack to {size:,} bytes, more than Kaggle keeps. It was left.")
            packed.extractall(folder, members, filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise BadInput(f"{archive.name} is damaged or unsafe ({error}). Fetch again; nothing was replaced.") from None


def _check(results: Path, loose: Path) -> dict[str, Summary]:
    """The summaries of the runs, each checked against what came with it. Raises BadInput."""
    found: dict[str, Summary] = {}
    for run in sorted(
        {path.parent.relative_to(base) for base in (results, loose) for path in base.glob("*/summary.json")}
    ):
        packed, beside = (Summary.read(base / run) for base in (results, loose))
        if packed is not None and beside is not None and packed != beside:
            raise BadInput(
                _wrong(run, "the summary in the archive is not the one beside it: the packaging was cut off")
            )
        summary = beside if packed is None else packed
        if summary is None:
            raise BadInput(_wrong(run, "its summary.json cannot be read"))
        found[str(run)] = summary
        for base in (results, loose):
            _check_run(base / run, summary)
    return found


def _check_run(run: Path, summary: Summary) -> None:
    """Metrics end at or before the step of the summary (at it, when completed); weights match their manifests."""
    if (run / "metrics.csv").is_file():
        last = max((int(row["step"]) for row in read(run / "metrics.csv")), default=0)
        if last > summary.step or (summary.reason == "completed" and last < summary.step):
            raise BadInput(_wrong(run.name, f"metrics.csv ends at step {last:,}, its summary at {summary.step:,}"))
    for manifest in sorted(run.glob("*/step-*/manifest.json")):
        try:
            checkpoint.verify(manifest.parent)
        except checkpoint.DamagedCheckpoint as damage:
            raise BadInput(_wrong(run.name, f"{manifest.parent.name} is damaged: {damage}")) from None


def _wrong(run: Path | str, what: str) -> str:
    return f"The results of {run} do not fit together: {what}. Fetch again; what was fetched before is untouched."


def _merge(loose: Path, results: Path) -> None:
    for path in sorted(p for p in loose.rglob("*") if p.is_file()):
        target = results / path.relative_to(loose)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)


def _replace(new: Path, folder: Path) -> None:
    old = folder.with_name(folder.name + ".old")
    if old.exists():
        shutil.rmtree(old)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    if old.exists():
        shutil.rmtree(old)
