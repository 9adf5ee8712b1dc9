"""`trainbook notebook` and `kaggle dataset|push|...|preflight`: options in, sentences and exit codes out."""

import argparse
import contextlib
import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lib.config import split_overrides
from lib.errors import BadInput, printable
from lib.machine import disk
from lib.machine.facts import FACTS
from lib.report import findings
from trainbook import new
from trainbook.kaggle import carried, chain, client, dataset, kernel
from trainbook.kaggle.kernel import Notebook

_WHOLE_LOG = "The whole log: trainbook kaggle status {} --log"
_MODEL = "OWNER/MODEL/FRAMEWORK/VARIATION/VERSION"
Options = dict[str, dict[str, Any]]  # keywords of `add_argument` by name


def _text(text: str, **keywords: Any) -> dict[str, Any]:
    return {"default": "", "help": text, **keywords}


def _list(metavar: str, text: str) -> dict[str, Any]:
    return {"action": "append", "default": [], "metavar": metavar, "help": text}


def _flag(text: str, **keywords: Any) -> dict[str, Any]:
    return {"action": "store_true", "help": text, **keywords}


_OWNER: Options = {"--owner": _text("the account; empty: the one that the client is signed in to")}
_SET: Options = {"--set": _list("KEY=VALUE", "override a configuration key")}
_ON_KAGGLE: Options = {"name": {"help": "a workload or notebook such as graphmer, my.yaml, or owner/slug on Kaggle"}}
_BUILT: Options = {
    "name": {"help": "a workload or notebook such as graphmer, my.yaml, or a path ending in .ipynb"},
    **_OWNER,
    "--slug": _text("the notebook's name on Kaggle; empty: trainbook- and its file name"),
    "--dataset": _list("OWNER/SLUG", "a data set to mount"),
    "--kernel": _list("OWNER/SLUG", "a notebook's output to mount"),
    "--model": _list(_MODEL, "a published model to mount"),
    "--param": _list("NAME=VALUE", "a value of the parameters cell"),
    "--set": _list("KEY=VALUE", "a configuration key (OVERRIDES)"),
    "--gpu": {"action": argparse.BooleanOptionalAction, "help": "T4 x2 or none; left out: as the notebook says"},
    "--internet": {"action": argparse.BooleanOptionalAction, "help": "left out: as the notebook says"},
    "--public": _flag("visible to everybody; without it, to you alone"),
    "--stale": _flag("send it although lib was edited after it was built"),
}


def _owner(options: argparse.Namespace) -> str:
    """Returns the account. A dry run, which asks Kaggle nothing, goes on without one."""
    try:
        return options.owner or client.username()
    except BadInput:
        if not getattr(options, "dry_run", False):
            raise
        print("The kaggle client is not signed in here: OWNER stands for your account.")
        return "OWNER"


def _build(config: Path, out: Path) -> Path:
    """Writes a configuration's notebook, and prints what it carries; returns the folder of its files."""
    from trainbook.notebooks import own  # not at the top: torch takes seconds to import

    if out.suffix != ".ipynb":
        raise BadInput(f"A notebook's name ends in .ipynb; {out} does not.")
    source = own.read(config)
    lacked, unknown = carried.compared(source.packages)
    text = own.text(source, internet=bool(lacked))
    try:
        disk.make_folders(out.parent)
        with disk.whole(out) as aside:
            aside.write_text(text, "utf-8", newline="\n")
    except OSError as error:
        raise BadInput(f"{out} cannot be written ({error.strerror or error}). Give another place.") from None
    size = f"{len(text.encode()) / 1000:,.0f} KB"
    print(f"Built {out} ({size}) from {config}. It carries lib and {', '.join(source.files)}.", *source.notes, sep="\n")
    if lacked:
        print(f"Kaggle's image lacks {', '.join(lacked)}: the notebook asks for internet, and installs it there.")
    if unknown:
        print(unknown, carried.INSTALLED)
    if not source.has_small:
        small = config.with_name(f"{config.stem}_small.yaml")
        print(f"There is no {small}, so a machine without a GPU trains the same configuration.")
    return source.root


def _path(name: str, slug: str = "") -> tuple[Path, Path | None]:
    """Returns the path of a notebook; that of a configuration is built now, and its files' folder is returned too."""
    if not name.endswith((".yaml", ".yml")):
        return kernel.find(name), None
    config = Path(name)
    path = kernel.HOME / (slug or kernel.slug_of(config)) / f"{config.stem}.ipynb"
    return path, _build(config, path)


def _checked(options: argparse.Namespace) -> tuple[Notebook, dict[str, object], Any]:
    """Returns the notebook, the values of its parameters, and what it would train. Raises BadInput."""
    path, root = _path(options.name, options.slug)
    for name in [*options.dataset, *options.kernel]:
        if name.count("/") != 1:
            raise BadInput(f"{name!r} is not owner/slug, as in the address that the browser shows.")
    for name in options.model:
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+){3}/[0-9]+", name):
            raise BadInput(f"{name!r} is not {_MODEL}, with the version at its end: ada/bert/pytorch/tiny/2.")
    name = f"{_owner(options)}/{options.slug or kernel.slug_of(path)}"
    switches = {switch: getattr(options, switch) for switch in ("gpu", "internet", "public")}
    notebook = Notebook(path, name, options.dataset, options.kernel, root=root, models=options.model, **switches)
    training, values = kernel.check(notebook, kernel.read_parameters(options.param, options.set), options.stale)
    return notebook, values, training


_DATASET: Options = {
    "config": _text("the configuration whose task reads and validates the data", nargs="?"),
    "--data": _text("the data's folder; empty: data.dir of the configuration"),
    "--run": _text("pack the output of this run instead", dest="run_folder", metavar="DIR"),
    "--slug": {"required": True, "help": "the data set's name on Kaggle, 6 to 50 characters"},
    **_OWNER,
    "--license": _text("by Kaggle's name, such as CC0-1.0, CC-BY-4.0, apache-2.0, MIT", default="unknown"),
    **_SET,
    "--dry-run": _flag("pack what would be sent, and send nothing"),
}


def _dataset(options: argparse.Namespace) -> int:
    if bool(options.config) == bool(options.run_folder):
        raise BadInput("Give either a configuration, whose task validates the data, or --run with a run's folder.")
    name = f"{_owner(options)}/{options.slug}"
    dataset.check(name)
    if options.run_folder:
        contents = dataset.of_run(Path(options.run_folder))
    else:
        from lib.task import load_config  # not at the top: torch takes seconds to import

        settings = {**split_overrides(options.set), **({"data.dir": options.data} if options.data else {})}
        contents = dataset.of_data(load_config(options.config, settings), name)
    folder = dataset.pack(*contents, name, options.license)
    if options.dry_run:
        print("Nothing was uploaded (--dry-run).")
        print(f"In the browser: Create > New Dataset, and drop the archive of {folder} onto the page.")
    else:
        print(f"Uploaded: {client.upload(folder, name)}")
    print(f"In the browser: open the notebook, Add Input > Your Datasets > {name}, then Save Version.")
    parameter = f" --param DATA_DIR={name}" * bool(options.config)
    print(f"On the command line: trainbook kaggle push {options.config or 'NOTEBOOK'} --dataset {name}{parameter}")
    return 0


_PUSH: Options = {
    **_BUILT,
    "--continue": _flag("mount its own last completed output", dest="own_output"),
    "--dry-run": _flag("show what would be sent, and send nothing"),
}


def _push(options: argparse.Namespace) -> int:
    notebook, values, training = _checked(options)
    if not options.dry_run:
        version, url = kernel.push(notebook, values, options.own_output)
        print(f"Version {version} of {notebook.kernel} was pushed and starts: {url}")
        print(f"Follow it: trainbook kaggle status {notebook.kernel} --follow")
        return 0
    folder, _ = kernel.prepare(notebook, values, options.own_output)
    file, limit = folder / notebook.path.name, int(FACTS["kaggle_notebook_bytes"].value)
    print(f"Nothing was sent (--dry-run). {folder} holds what a push sends:")
    print(f"  {file.name}: {file.stat().st_size:,} bytes of the {limit:,} that Kaggle takes")
    print(f"  {kernel.METADATA}: {(folder / kernel.METADATA).read_text('utf-8').rstrip()}")
    print("Parameters:", ", ".join(f"{name} = {value!r}" for name, value in values.items()) or "all as built")
    if training:
        keys = ", ".join(f"{key} = {value!r}" for key, value in training.overrides.items())
        print(f"Configuration: {training.file}" + (f", with {keys}" if keys else ""))
    print(f"Without an API token: kaggle.com > Create > New Notebook > File > Import Notebook: {file}")
    return 0


_STATUS: Options = {
    **_ON_KAGGLE,
    **_OWNER,
    "--log": _flag("show what it has printed so far"),
    "--follow": _flag("show what it prints until it ends"),
}


def _status(options: argparse.Namespace) -> int:
    """Prints the status; with --follow returns how the session ended: 0 complete, 130 stopped by hand, else 1."""
    name = kernel.kernel_of(options.name, options.owner)
    status = client.insist(lambda: client.status(name))
    if not options.follow or status.active:
        print(f"{name}: {status}", flush=True)
    if options.log or (options.follow and not status.active):
        print(client.log(name))
    if not options.follow:
        return 0
    if status.active:
        try:
            client.wait(name, ["QUEUED"])
            client.follow(name)
            status = client.wait(name, client.ACTIVE, client.SETTLING_POLLS)
        except KeyboardInterrupt:
            print("\nStopped here. The session on Kaggle continues by itself.")
            return 130
    print(f"{name}: {status}")
    if status.active:
        print("Its log has ended, but not the session. The same command follows it again.")
        return 1
    is_complete = status.word == "COMPLETE"
    print(f"The results: trainbook kaggle fetch {name}" if is_complete else _WHOLE_LOG.format(name))
    return 0 if is_complete else 130 if status.word.startswith("CANCEL") else 1


_FETCH: Options = {
    **_ON_KAGGLE,
    **_OWNER,
    "--to": _text("where to; empty: runs/kaggle/SLUG/results", metavar="DIR"),
    "--all": _flag("with the checkpoints, which are for resuming elsewhere"),
}


def _fetch(options: argparse.Namespace) -> int:
    name = kernel.kernel_of(options.name, options.owner)
    folder = Path(options.to) if options.to else kernel.HOME / name.split("/")[1] / "results"
    summaries = kernel.fetch(name, folder, options.all)
    for run, summary in summaries.items():
        members = f", a vote of {len(summary.members)} runs" if summary.members else f" at step {summary.step:,}"
        print(f"{printable(run)}: {summary.reason}{members}")
        for metric, value in summary.metrics.items():
            beside = f", the baseline {summary.baseline[metric]:.4f}" if metric in summary.baseline else ""
            print(f"  {metric}: {value:.4f}{beside}")
    size, number = disk.held(folder)
    print(f"{folder}: {number:,} files, {size / 1e6:,.1f} MB")
    for plot in sorted(folder.glob("*/plots/metrics.png")):
        print(f"Plot: {printable(plot)}")
    if not summaries:
        raise BadInput(f"{name} left no summary.json: it failed early or trains nothing. See {folder / 'session.log'}.")
    return 0


_CHAIN: Options = {
    **_BUILT,
    "--max-sessions": {"type": int, "default": 10, "help": "sessions of the whole chain"},
    "--min-hours": {"type": float, "default": 1.0, "help": "quota below which no session is started"},
    "--poll-seconds": {"type": float, "default": 60.0, "help": "seconds between requests to Kaggle"},
    "--fresh": _flag("forget earlier sessions and begin at step 0"),
    "--retry": _flag("continue after a failed, lost or completed session"),
}


def _chain(options: argparse.Namespace) -> int:
    notebook, values, _ = _checked(options)
    limits = options.max_sessions, options.min_hours, options.poll_seconds
    try:
        return chain.run(chain.Chain(notebook, values, *limits, options.retry), options.fresh)
    except KeyboardInterrupt:
        print("\nStopped here. A session on Kaggle continues by itself; the same command resumes the chain.")
        return 130


_PREFLIGHT: Options = {
    "name": {"help": "a workload or notebook such as graphmer, or my.yaml"},
    "--data": _text("the data's folder, or embedded; it is read and counted"),
    **_SET,
    "--json": _flag("print the findings as JSON"),
}


def show(sections: findings.Sections, as_json: bool = False) -> int:
    """Prints findings, as JSON or as a table; returns 2 where one is bad, else 0: a warning stops no run."""
    rows = [{"section": title.lower(), **asdict(f)} for title, listed in sections.items() for f in listed]
    worst = max((row["verdict"] for row in rows), key=("ok", "warning", "bad").index)
    print(json.dumps({"verdict": worst, "checks": rows}, indent=1) if as_json else findings.table(sections))
    return 2 if worst == "bad" else 0


def _preflight(options: argparse.Namespace) -> int:
    """Prints the findings; returns 1 where one is bad, else 0. A command that cannot run at all ends with 2."""
    from trainbook.kaggle import preflight  # not at the top: torch takes seconds to import

    with contextlib.redirect_stdout(sys.stderr):  # what reading the data prints must not get into the JSON
        path, root = _path(options.name)
        settings = split_overrides(options.set)
        sections = preflight.check(path, settings, options.data, root)
    code = min(1, show(sections, options.json))
    if not code and not options.json:
        print("Ready to push.")
    return code


_NOTEBOOK: Options = {
    "config": {"help": "the configuration of the run, such as my.yaml"},
    "--out": _text("the notebook; empty: beside you, named as the configuration", metavar="FILE"),
}


def _notebook(options: argparse.Namespace) -> int:
    """Writes the notebook of a configuration."""
    _build(Path(options.config), Path(options.out or f"{Path(options.config).stem}.ipynb"))
    print(f"On Kaggle: Create > New Notebook > File > Import Notebook; or trainbook kaggle push {options.config}")
    return 0


_COMMANDS = (
    ("dataset", _dataset, _DATASET, "pack a data folder, or a run, and upload it as a data set"),
    ("push", _push, _PUSH, "push a notebook, which starts a session"),
    ("status", _status, _STATUS, "how the newest session is doing"),
    ("fetch", _fetch, _FETCH, "download the results of a session and check them"),
    ("chain", _chain, _CHAIN, "session after session until the training is done"),
    ("preflight", _preflight, _PREFLIGHT, "everything to check before quota is spent"),
)


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `new` and `notebook`, and the command `kaggle` with its own commands."""
    new.add(commands)
    parser = commands.add_parser("notebook", help="write the notebook that trains a configuration of your own")
    inner = commands.add_parser("kaggle", help="data sets, notebooks and chains of sessions on Kaggle")
    below = inner.add_subparsers(required=True, metavar="command")
    parsers = [(parser, _notebook, _NOTEBOOK)]
    parsers += [(below.add_parser(name, help=text), run, options) for name, run, options, text in _COMMANDS]
    for parser, run, options in parsers:
        for option, keywords in options.items():
            parser.add_argument(option, **keywords)
        parser.set_defaults(run=run)
