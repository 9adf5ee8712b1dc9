"""A notebook on Kaggle: pushes it with its parameters, and brings its results home."""

import contextlib
import hashlib
import json
import re
import shutil
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lib.config import split_overrides
from lib.errors import BadInput, printable
from lib.machine import disk
from lib.machine.facts import FACTS
from lib.training.summary import FILE as SUMMARY
from lib.training.summary import Summary
from trainbook.kaggle import carried, client
from trainbook.kaggle.carried import ROOT
from trainbook.outputs import packing

HOME = Path("runs") / "kaggle"  # has a folder for each notebook on Kaggle, named by its slug
METADATA = "kernel-metadata.json"
PUSHED = "push"  # in a notebook's folder: the files of the last push
_UPLOADED = "uploaded.txt"  # there too: the hash of a repository that Kaggle has
_SOURCE = "source.txt"  # there too: the path of the file that was pushed
_LONGEST_TITLE = 50  # letters: the server answers 500 to a longer one (kaggle-cli#179)
# Cards that some competitions offer, with the fact of their machine_shape
ACCELERATORS = {"rtxpro6000": "kaggle_rtx_machine_shape"}
_RESULTS = rf"(^|/)({re.escape(packing.ARCHIVE)}|{re.escape(SUMMARY)}|metrics\.csv)$"
_NO_CHECKPOINTS = r"^(?!.*(^|/)checkpoints/).*$"


@dataclass(frozen=True)
class Notebook:
    """A built notebook and its options on Kaggle; `root` is as in `carried.training`."""

    path: Path
    kernel: str  # owner/slug
    datasets: Sequence[str] = ()  # owner/slug
    kernels: Sequence[str] = ()  # other notebooks whose output is mounted
    gpu: bool | None = None
    internet: bool | None = None
    public: bool = False
    root: Path | None = None
    models: Sequence[str] = ()  # owner/model/framework/variation/version
    competitions: Sequence[str] = ()  # by their names in the browser's address
    accelerator: str = ""  # one of ACCELERATORS; empty: T4 x2
    source: Path | None = None  # the file that the user named
    code: tuple[str, Path] | None = None  # a data set to upload before a push, and its folder

    @property
    def folder(self) -> Path:
        return HOME / self.kernel.split("/")[1]

    @property
    def was_pushed(self) -> bool:
        return was_pushed(self.folder.name)

    @property
    def uses_gpu(self) -> bool:
        return bool(self.accelerator) or self.switch("isGpuEnabled", self.gpu)

    @property
    def has_internet(self) -> bool:
        """Whether the session has internet: with a competition only if it was asked for."""
        choice = self.internet
        if choice is None and self.competitions:
            return False
        return self.switch("isInternetEnabled", choice)

    def switch(self, name: str, choice: bool | None) -> bool:
        if choice is None:
            return is_on(read_json(self.path), name)
        return choice


def was_pushed(slug: str) -> bool:
    """Tells whether a notebook was pushed from here before; Kaggle may then deny it only because it is new."""
    return (HOME / slug / PUSHED / METADATA).is_file()


def is_on(notebook: Mapping[str, Any], switch: str) -> bool:
    """Tells whether a switch for Kaggle is on in a notebook's metadata."""
    return bool(notebook["metadata"].get("kaggle", {}).get(switch))


def read_json(path: Path) -> dict[str, Any]:
    try:
        notebook = json.loads(path.read_text("utf-8"))
        notebook["cells"], notebook["metadata"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path} is no notebook ({type(error).__name__}: {error}).") from None
    return notebook


def find(name: str) -> Path:
    if name.endswith(".ipynb") and Path(name).is_file():
        return Path(name)
    built = sorted((ROOT / "notebooks").glob("*.ipynb"))
    matches = [path for path in built if name in (path.stem, _without_number(path.stem))]
    if len(matches) != 1:
        names = ", ".join(path.stem for path in built) or "none"
        raise BadInput(
            f"There is no notebook {name}. There are: {names}. Or give a path that ends in .ipynb, or"
            " the configuration of a run, such as my.yaml."
        )
    return matches[0]


def _without_number(stem: str) -> str:
    return re.sub(r"^\d+_", "", stem)


def is_command(name: str) -> bool:
    """Returns whether a name is a settings file with a command, as `trainbook run` takes it."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return False
    try:
        values = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        return False
    return isinstance(values, dict) and "command" in values


def slug_of(path: Path) -> str:
    """Returns the slug of a notebook: trainbook-01-graphmer of 01_graphmer.ipynb."""
    return "trainbook-" + re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-")


def kernel_of(name: str, owner: str = "") -> str:
    if re.fullmatch(r"[\w-]+/[\w-]+", name):
        return name
    path = Path(name) if name.endswith((".yaml", ".yml")) else find(name)
    check_source(slug_of(path), path)
    return f"{owner or client.username()}/{slug_of(path)}"


def check_slug(slug: str) -> None:
    """Raises BadInput for a slug that Kaggle refuses or changes."""
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug):
        raise BadInput(
            f"{slug!r} is no slug: words of small letters and digits with single hyphens. Correct --slug."
        )
    if len(slug) > _LONGEST_TITLE:
        raise BadInput(
            f"{slug} has {len(slug)} letters, and Kaggle takes {_LONGEST_TITLE} in the title of a"
            " notebook. Give a shorter name with --slug."
        )


def check_source(slug: str, source: Path) -> None:
    """Raises BadInput if the slug's notebook was pushed from another file, which is still there."""
    with contextlib.suppress(OSError):
        other = Path((HOME / slug / _SOURCE).read_text("utf-8").strip())
        if other.exists() and other != source.resolve():
            raise BadInput(
                f"{source} and {printable(other)} would be one notebook on Kaggle, {slug}, which has runs of the "
                f"latter. Push {source.name} with --slug NAME, and name it OWNER/NAME afterwards."
            )


def read_parameters(pairs: Sequence[str], settings: Sequence[str]) -> dict[str, object]:
    usage = "--param takes NAME=VALUE, for example MAX_STEPS=200; --set writes OVERRIDES"
    values = {name: yaml.safe_load(text) for name, text in split_overrides(pairs, usage).items()}
    if "OVERRIDES" in values:
        raise BadInput(f"{usage}.")
    overrides = {key: yaml.safe_load(text) for key, text in split_overrides(settings).items()}
    if overrides:
        values["OVERRIDES"] = overrides
    return values


def metadata(notebook: Notebook, own_output: bool) -> dict[str, Any]:
    """Returns kernel-metadata.json with every key: the client's defaults differ."""
    slug = notebook.kernel.partition("/")[2]
    kernels = list(notebook.kernels)
    shape = ACCELERATORS.get(notebook.accelerator, "kaggle_machine_shape")
    if own_output:
        kernels.append(notebook.kernel)
    return {
        "id": notebook.kernel,
        "title": slug.replace("-", " "),  # Kaggle makes the slug from it
        "code_file": notebook.path.name, "language": "python", "kernel_type": "notebook",
        "is_private": not notebook.public, "enable_gpu": notebook.uses_gpu, "enable_tpu": False,
        "enable_internet": notebook.has_internet,
        "machine_shape": FACTS[shape].value if notebook.uses_gpu else "",
        "docker_image_pinning_type": "latest",  # else a version runs on the image of the notebook's first push
        "dataset_sources": list(notebook.datasets), "model_sources": list(notebook.models),
        "kernel_sources": kernels, "competition_sources": list(notebook.competitions),
    }  # fmt: skip


def check(notebook: Notebook, values: dict[str, object]) -> dict[str, object]:
    """Refuses a notebook that its session would refuse.

    Returns the session's values; DATA_DIR is by default the one mounted input.
    """
    slug = notebook.kernel.partition("/")[2]
    check_slug(slug)
    check_inputs(notebook)
    if notebook.source:
        check_source(slug, notebook.source)
    source = read_json(notebook.path)
    known = carried.parameters(source)
    if unknown := values.keys() - known.keys():
        names = ", ".join(unknown)
        raise BadInput(
            f"{notebook.path.name} has no parameter {names}. It has: {', '.join(known)}."
        )
    if notebook.root is None:
        check_fresh(notebook.path)
    if notebook.accelerator and "SESSION_MINUTES" in known and not values.get("SESSION_MINUTES"):
        minutes = int(FACTS["kaggle_rtx_run_minutes"].value)
        print(f"SESSION_MINUTES is {minutes}: a session with {notebook.accelerator} has 9 hours.")
        values = {**values, "SESSION_MINUTES": minutes}
    entries = carried.training(source, values, notebook.uses_gpu, notebook.root)
    if entries is None or notebook.root is None:
        return values
    data = entries[0].config.data
    folders = carried.here(data)
    inputs = [*notebook.datasets, *notebook.competitions]
    is_one = len(folders) == len(data.dirs) == len(inputs) == 1
    if is_one and not values.get("DATA_DIR"):
        print(
            f"DATA_DIR is {inputs[0]} there, because data.dir is {folders[0]}, which is on this machine."
        )
        return check(notebook, {**values, "DATA_DIR": inputs[0]})
    mounted = [name.rpartition("/")[2] for name in (*inputs, *notebook.kernels)]
    if missing := [folder for folder in folders if Path(folder).name not in mounted]:
        raise BadInput(
            f"data.dir is {', '.join(missing)}, which is on this machine, and a session does not have"
            f" it. Upload it (trainbook kaggle dataset {notebook.path.stem}.yaml --slug SLUG), then"
            " give --dataset OWNER/SLUG --param DATA_DIR=OWNER/SLUG."
        )
    return values


def check_inputs(notebook: Notebook) -> None:
    """Raises BadInput for names that Kaggle does not have, and for a card or internet that a session does not get."""
    _check_offline(notebook)
    for name in notebook.competitions:
        check_competition(name)
    for name in notebook.datasets:
        if not re.fullmatch(r"[\w-]+/[\w-]+", name):
            raise BadInput(
                f"{name!r} is no data set. Give the last two parts of its address: --dataset"
                " OWNER/SLUG."
            )


def check_competition(name: str) -> None:
    """Raises BadInput for a text that is no name of a competition."""
    if not re.fullmatch(r"[\w-]+", name):
        raise BadInput(f"{name!r} is no competition. Give the last part of its address: titanic.")


def _check_offline(notebook: Notebook) -> None:
    """Raises BadInput for a card that needs a competition, and for internet that a competition switches off."""
    card = notebook.accelerator
    if card and card not in ACCELERATORS:
        raise BadInput(
            f"--accelerator is {printable(card, most=60)}. It is one of: {', '.join(ACCELERATORS)}; "
            "left out, a session has two T4s."
        )
    if card and not notebook.competitions:
        raise BadInput(
            f"Kaggle offers {card} only to notebooks of some competitions. Give --competition NAME."
        )
    if card and notebook.has_internet:
        raise BadInput(f"A session with {card} has no internet. Leave --internet out.")
    wants = notebook.switch("isInternetEnabled", None)
    if wants and notebook.competitions and notebook.internet is None:
        raise BadInput(
            f"{notebook.path.name} asks for internet, and a session with a competition has none unless "
            "--internet is given. Mount the wheels of what it lacks (docs/kaggle.md, Competitions)."
        )


def check_fresh(path: Path) -> None:
    if carried.is_stale(path):
        raise BadInput(
            f"{path} is stale: its source, lib or configs were edited. Build it again: make notebooks"
        )


def check_text(path: Path, text: str, files: Mapping[str, str]) -> int:
    """Returns a notebook's size. Raises BadInput if it is too large, or holds credentials."""
    size = len(text.encode())
    limit = int(FACTS["kaggle_notebook_bytes"].value)
    if size >= limit:
        raise BadInput(
            f"{path} would have {size:,} bytes; Kaggle has refused {limit:,}. Carry less."
        )
    client.refuse(path, "\n".join([text, *files.values()]).encode())
    return size


def prepare(notebook: Notebook, values: Mapping[str, object], own_output: bool) -> tuple[Path, str]:
    """Writes the folder of a push, with a cell of values; returns it and the push's mark. Raises BadInput."""
    content = read_json(notebook.path)
    mark = f"# push {uuid.uuid4().hex}"  # identifies the version
    assignments = [f"{name} = {value!r}" for name, value in values.items()]
    lines = ["# Values given on the command line.", *assignments, mark]
    cell: dict[str, Any] = {"cell_type": "code", "execution_count": None, "id": mark[-8:]}
    cell |= {"outputs": [], "metadata": {"tags": ["injected-parameters"]}}
    cell["source"] = "\n".join(lines)
    position = 0
    if parameters := carried.tagged(content, "parameters"):
        position = content["cells"].index(parameters[0]) + 1
    content["cells"].insert(position, cell)
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    check_text(notebook.path, text, carried.carried_files(content))
    described = metadata(notebook, own_output)
    folder = notebook.folder / PUSHED
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / notebook.path.name).write_text(text, "utf-8")
    (folder / METADATA).write_text(json.dumps(described, indent=1) + "\n", "utf-8")
    return folder, mark


def push(notebook: Notebook, values: Mapping[str, object], own_output: bool) -> tuple[int, str]:
    was_pushed = notebook.was_pushed
    folder, _ = prepare(notebook, values, own_output)
    status = client.insist(lambda: client.find(notebook.kernel, was_pushed))
    if status and status.active:
        raise BadInput(
            f"{notebook.kernel} is {status.word.lower()}: a second run at once would use the quota twice."
        )
    if own_output and not status:
        raise BadInput(
            f"{notebook.kernel} has no output to resume from yet. Leave --continue out of the first push."
        )
    wait_for_data(notebook)
    return send(notebook, folder)


def wait_for_data(notebook: Notebook) -> None:
    """Waits until the owner's data sets can be attached; Kaggle may hide the status of others.

    The data set of a repository is uploaded before, unless Kaggle has it as it is.
    """
    if notebook.code:
        _upload_code(notebook, *notebook.code)
    owner = notebook.kernel.partition("/")[0]
    for dataset in notebook.datasets:
        if dataset.startswith(f"{owner}/"):
            client.wait_until_ready(dataset)


def _upload_code(notebook: Notebook, dataset: str, folder: Path) -> None:
    hashed = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        hashed.update(path.name.encode() + path.read_bytes())
    record = notebook.folder / _UPLOADED
    is_same = record.is_file() and record.read_text("utf-8") == f"{dataset} {hashed.hexdigest()}"
    if is_same and client.has_dataset(dataset):
        return
    print(f"Uploaded the repository: {client.upload(folder, dataset)}", flush=True)
    disk.write_text(record, f"{dataset} {hashed.hexdigest()}")


def send(notebook: Notebook, folder: Path, hold: int | None = None) -> tuple[int, str]:
    """Pushes a prepared folder, and records its source; returns version and address."""
    if notebook.source:
        disk.write_text(notebook.folder / _SOURCE, f"{notebook.source.resolve()}\n")
    return client.push(folder, hold)


def fetch(kernel: str, folder: Path, everything: bool = False) -> dict[str, Summary]:
    """Downloads and checks results, without checkpoints unless `everything`, and then replaces `folder`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as work:
        results = Path(work) / "results"
        archive = results / packing.ARCHIVE
        pattern = "." if everything else _RESULTS
        client.insist(lambda: client.output(kernel, results, pattern))
        if not archive.is_file() and not everything:  # a session that ended before its packaging
            client.insist(lambda: client.output(kernel, results, _NO_CHECKPOINTS))
        keep_log(results, kernel)
        if archive.is_file():
            unpack(archive, results)
            archive.unlink()
        runs = sorted(path.parent for path in results.glob(f"*/{SUMMARY}"))
        summaries = {run.name: _checked(run) for run in runs}
        if folder.exists():
            folder.rename(Path(work) / "old")
        results.rename(folder)
    return summaries


def keep_log(folder: Path, kernel: str) -> None:
    """Replaces the client's JSON log in a folder by session.log: text without credentials."""
    raw = folder / f"{kernel.split('/')[1]}.log"
    if raw.is_file():
        (folder / "session.log").write_text(client.readable(raw.read_text("utf-8")), "utf-8")
        raw.unlink()


def unpack(archive: Path, folder: Path) -> None:
    with packing.opened(archive, int(FACTS["kaggle_output_bytes"].value)) as packed:
        members = packed.getmembers()
        if not all(member.isfile() or member.isdir() for member in members):
            raise BadInput(
                f"{archive.name} holds links or devices, which no run writes. It was not unpacked."
            )
        packed.extractall(folder, members, filter="data")


def _checked(run: Path) -> Summary:
    """Returns the summary of an unpacked run whose weights are whole. Raises BadInput."""
    from lib import checkpoint  # not at the top: torch takes seconds to import

    try:
        summary = Summary.read(run)
        if summary is None:
            raise BadInput(f"its {SUMMARY} cannot be read")
        for manifest in sorted(run.glob("*/step-*/manifest.json")):
            checkpoint.verify(manifest.parent)
        return summary
    except (BadInput, checkpoint.DamagedCheckpoint) as error:
        raise BadInput(
            f"The results of {run.name} are damaged: {error}. Fetch again; nothing was replaced."
        ) from None
