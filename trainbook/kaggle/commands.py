"""`trainbook notebook` and `kaggle dataset|push|...|preflight`: options in, sentences and exit codes out."""

import argparse
import contextlib
import functools
import json
import re
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lib.config import split_overrides
from lib.errors import BadInput, printable
from lib.machine.facts import FACTS
from lib.report import findings
from trainbook import new
from trainbook.kaggle import built, carried, chain, client, dataset, kernel
from trainbook.kaggle.kernel import Notebook

Options = dict[str, dict[str, Any]]  # keywords of `add_argument` by name

_OWNER: Options = {"--owner": {"default": "", "help": "the account; empty: the one that the client is signed in to"}}
_SET: Options = {
    "--set": {"action": "append", "default": [], "metavar": "KEY=VALUE", "help": "override a configuration key"}
}
_ON_KAGGLE: Options = {
    "name": {"help": "a workload or notebook such as graphmer, my.yaml, or owner/slug on Kaggle"},
    **_OWNER,
}
_MODEL = "OWNER/MODEL/FRAMEWORK/VARIATION/VERSION"
_BUILT: Options = {
    "name": {"help": "a workload or notebook such as graphmer, my.yaml, or a path ending in .ipynb"},
    **_OWNER,
    "--slug": {"default": "", "help": "the notebook's name on Kaggle; empty: trainbook- and its file name"},
    "--dataset": {"action": "append", "default": [], "metavar": "OWNER/SLUG", "help": "a data set to mount"},
    "--kernel": {"action": "append", "default": [], "metavar": "OWNER/SLUG", "help": "a notebook's output to mount"},
    "--model": {"action": "append", "default": [], "metavar": _MODEL, "help": "a published model to mount"},
    "--param": {"action": "append", "default": [], "metavar": "NAME=VALUE", "help": "a value of the parameters cell"},
    "--set": {"action": "append", "default": [], "metavar": "KEY=VALUE", "help": "a configuration key (OVERRIDES)"},
    "--gpu": {"action": argparse.BooleanOptionalAction, "help": "T4 x2 or none; left out: as the notebook says"},
    "--internet": {"action": argparse.BooleanOptionalAction, "help": "left out: as the notebook says"},
    "--public": {"action": "store_true", "help": "visible to everybody; without it, to you alone"},
    "--continue": {"dest": "own_output", "action": "store_true", "help": "mount its own last completed output"},
    "--stale": {"action": "store_true", "help": "send it although lib was edited after it was built"},
}


def _owner(options: argparse.Namespace) -> str:
    """Returns the account. A dry run, which asks Kaggle nothing, goes on without one."""
    if options.owner:
        return options.owner
    try:
        return client.username()
    except BadInput:
        if not getattr(options, "dry_run", False):
            raise
        print("The kaggle client is not signed in here: OWNER stands for your account.")
        return "OWNER"


def _found(name: str, slug: str = "") -> tuple[Path, Path | None]:
    """Returns the path of a notebook, and the folder of its own files where it is that of a configuration.

    Such a notebook is built now, below runs/kaggle. Raises BadInput.
    """
    if not kernel.is_configuration(name):
        return kernel.find(name), None
    config = Path(name)
    made = built.build(config, kernel.HOME / (slug or kernel.slug_of(config)) / f"{config.stem}.ipynb")
    print(made.said)
    return made.path, made.root


def _notebook(options: argparse.Namespace) -> Notebook:
    path, root = _found(options.name, options.slug)
    for name in [*options.dataset, *options.kernel]:
        if name.count("/") != 1:
            raise BadInput(f"{name!r} is not owner/slug, as in the address that the browser shows.")
    for name in options.model:
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+){3}/[0-9]+", name):
            raise BadInput(f"{name!r} is not {_MODEL}, with the version at its end: ada/bert/pytorch/tiny/2.")
    return Notebook(
        *(path, f"{_owner(options)}/{options.slug or kernel.slug_of(path)}", options.dataset, options.kernel),
        *(options.gpu, options.internet, options.public, root, options.model),
    )


_DATASET: Options = {
    "config": {"nargs": "?", "default": "", "help": "the configuration whose task reads and validates the data"},
    "--data": {"default": "", "help": "the data's folder; empty: data.dir of the configuration"},
    "--run": {"dest": "run_folder", "default": "", "metavar": "DIR", "help": "pack the output of this run instead"},
    "--slug": {"required": True, "help": "the data set's name on Kaggle, 6 to 50 characters"},
    **_OWNER,
    "--license": {"default": "unknown", "help": "by Kaggle's name, such as CC0-1.0, CC-BY-4.0, apache-2.0, MIT"},
    "--title": {"default": "", "help": "6 to 50 characters; empty: the slug with spaces"},
    "--subtitle": {"default": "", "help": "20 to 80 characters"},
    "--least": {"type": int, "default": 100, "help": "fewest training samples, as the task counts them"},
    "--notes": {"default": "A new version", "help": "the note of a new version"},
    **_SET,
    "--dry-run": {"action": "store_true", "help": "pack and check, and stop before the upload"},
}


def _dataset(options: argparse.Namespace) -> int:
    if bool(options.config) == bool(options.run_folder):
        raise BadInput("Give either a configuration, whose task validates the data, or --run with a run's folder.")
    labels = dataset.Labels(f"{_owner(options)}/{options.slug}", options.license, options.title, options.subtitle)
    if options.run_folder:
        package = dataset.pack_run(Path(options.run_folder), labels)
    else:
        from lib.task import load_config  # not at the top: torch takes seconds to import

        settings = split_overrides(options.set)
        if options.data:
            settings["data.dir"] = options.data
        package = dataset.pack_data(load_config(options.config, settings), labels, options.least, options.config)
    print(dataset.describe(package))
    done = "Nothing was uploaded (--dry-run)." if options.dry_run else ""
    print(done or f"Uploaded: {dataset.upload(package, options.notes)}")
    print(dataset.steps(package, uploaded=not options.dry_run))
    return 0


_PUSH: Options = {
    **_BUILT,
    "--dry-run": {"action": "store_true", "help": "show what would be sent, and send nothing"},
}


def _push(options: argparse.Namespace) -> int:
    notebook = _notebook(options)
    values = kernel.with_mounted_data(notebook, kernel.read_parameters(options.param, options.set))
    training = kernel.check(notebook, values, options.stale)
    if options.dry_run:
        print(_what_is_sent(notebook, values, training, options.own_output))
        return 0
    pushed = kernel.push(notebook, values, options.own_output)
    print(f"Version {pushed.version} of {notebook.kernel} was pushed and starts: {pushed.url}")
    print(f"Follow it: trainbook kaggle status {notebook.kernel} --follow")
    return 0


def _what_is_sent(
    notebook: Notebook, values: dict[str, object], training: carried.Training | None, own_output: bool
) -> str:
    """Returns the files of a push, with their sizes, metadata and configuration, and how to send them by hand."""
    folder, _ = kernel.prepare(notebook, values, own_output)
    file, limit = folder / notebook.path.name, int(FACTS["kaggle_notebook_bytes"].value)
    described = json.loads((folder / kernel.METADATA).read_text("utf-8"))
    lines = [f"Nothing was sent (--dry-run). {folder} holds what a push sends:"]
    lines.append(f"  {file.name}: {file.stat().st_size:,} bytes of the {limit:,} that Kaggle takes")
    lines += [f"  {kernel.METADATA}:", *(f"    {key}: {json.dumps(value)}" for key, value in described.items())]
    lines += ["Parameters: " + (", ".join(f"{name} = {value!r}" for name, value in values.items()) or "all as built")]
    if training:
        keys = ", ".join(f"{key} = {value!r}" for key, value in training.overrides.items())
        lines.append(f"Configuration: {training.file}" + (f", with {keys}" if keys else ""))
        lines += [f"Queue: {', '.join(entry.name for entry in training.entries)}"] * (len(training.entries) > 1)
    lines.append(f"Without an API token: kaggle.com > Create > New Notebook > File > Import Notebook: {file}")
    return "\n".join(lines)


_STATUS: Options = {
    **_ON_KAGGLE,
    "--log": {"action": "store_true", "help": "show what it has printed so far"},
    "--follow": {"action": "store_true", "help": "show what it prints until it ends"},
}


def _status(options: argparse.Namespace) -> int:
    """Prints the status; with --follow returns how the session ended: 0 complete, 130 stopped by hand, else 1."""
    name = kernel.kernel_of(options.name, options.owner)
    status = client.insist(lambda: client.status(name))
    if not options.follow:
        print(_described(name, status))
        if options.log:
            print(client.log(name))
        return 0
    try:
        if status.active:
            print(_described(name, status), flush=True)
            client.wait(name, ["QUEUED"])
            client.follow(name)
            status = client.wait(name, client.ACTIVE, client.SETTLING_POLLS)
        else:
            print(client.log(name))
    except KeyboardInterrupt:
        print("\nStopped here. The session on Kaggle continues by itself.")
        return 130
    print(_described(name, status))
    if status.active:
        print("Its log has ended, but not the session. The same command follows it again.")
        return 1
    if status.word == "COMPLETE":
        print(f"The results: trainbook kaggle fetch {name}")
        return 0
    print(f"The whole log: trainbook kaggle status {name} --log")
    return 130 if status.word.startswith("CANCEL") else 1


def _described(name: str, status: client.Status) -> str:
    return f"{name}: {status.word.lower()}" + (f" ({status.failure})" if status.failure else "")


_FETCH: Options = {
    **_ON_KAGGLE,
    "--to": {"default": "", "metavar": "DIR", "help": "where to; empty: runs/kaggle/SLUG/results"},
    "--all": {"action": "store_true", "help": "with the checkpoints, which are for resuming elsewhere"},
    "--open": {"action": argparse.BooleanOptionalAction, "help": "open the plots; left out: in a terminal"},
}


def _fetch(options: argparse.Namespace) -> int:
    name = kernel.kernel_of(options.name, options.owner)
    folder = Path(options.to) if options.to else kernel.HOME / name.split("/")[1] / "results"
    fetched = kernel.fetch(name, folder, options.all)
    for run, summary in fetched.summaries.items():
        members = f", a vote of {len(summary.members)} runs" if summary.members else f" at step {summary.step:,}"
        print(f"{printable(run)}: {summary.reason}{members}")
        for metric, value in summary.metrics.items():
            beside = f", the trivial baseline {summary.baseline[metric]:.4f}" if metric in summary.baseline else ""
            print(f"  {metric}: {value:.4f}{beside}")
    print(f"{fetched.folder}: {fetched.files:,} files, {fetched.size / 1e6:,.1f} MB")
    for plot in fetched.plots:
        print(f"Plot: {printable(plot)}")
        if sys.stdout.isatty() if options.open is None else options.open:
            webbrowser.open(plot.resolve().as_uri())
    if not fetched.summaries:
        raise BadInput(f"{name} left no summary.json: it failed early or trains nothing. See {folder / 'session.log'}.")
    return 0


_CHAIN: Options = {
    **_BUILT,
    "--max-sessions": {"type": int, "default": 10, "help": "sessions of the whole chain"},
    "--min-hours": {"type": float, "default": 1.0, "help": "quota below which no session is started"},
    "--poll-seconds": {"type": float, "default": 60.0, "help": "seconds between requests to Kaggle"},
    "--fresh": {"action": "store_true", "help": "forget earlier sessions and begin at step 0"},
    "--retry": {"action": "store_true", "help": "continue after a failed, lost or completed session"},
}


def _chain(options: argparse.Namespace) -> int:
    notebook = _notebook(options)
    values = kernel.with_mounted_data(notebook, kernel.read_parameters(options.param, options.set))
    kernel.check(notebook, values, options.stale)
    limits = options.max_sessions, options.min_hours, options.poll_seconds
    sessions = chain.Chain(notebook, values, *limits, options.own_output, options.retry)
    try:
        return chain.run(sessions, options.fresh)
    except KeyboardInterrupt:
        print("\nStopped here. A session on Kaggle continues by itself; the same command resumes the chain.")
        return 130


_PREFLIGHT: Options = {
    "name": {"help": "a workload or notebook such as graphmer, or my.yaml"},
    "--data": {"default": "", "help": "the data's folder, or embedded; it is read and counted"},
    **_SET,
    "--steps-per-second": {"type": float, "default": 0.0, "help": "measured speed, such as the smoke test's"},
    "--url": {"action": "append", "default": [], "help": "an address that the run downloads from"},
    "--json": {"action": "store_true", "help": "print the findings as JSON"},
}


def _preflight(options: argparse.Namespace) -> int:
    """Prints the findings; returns 1 where one is bad, else 0. A command that cannot run at all ends with 2."""
    from trainbook.kaggle import preflight  # not at the top: torch takes seconds to import

    with contextlib.redirect_stdout(sys.stderr):  # what reading the data prints must not get into the JSON
        path, root = _found(options.name)
        settings, speed = split_overrides(options.set), options.steps_per_second
        sections = preflight.check(path, settings, options.data, speed, options.url, root)
    print(findings.as_json(sections) if options.json else findings.table(sections))
    code = min(1, findings.exit_code(sections))
    if not code and not options.json:
        print("Ready to push.")
    return code


_OWN: Options = {
    "config": {"help": "the configuration of the run, such as my.yaml"},
    "--out": {"default": "", "metavar": "FILE", "help": "the notebook; empty: beside you, named as the configuration"},
}


def _own(options: argparse.Namespace) -> int:
    """Writes the notebook of a configuration."""
    made = built.build(Path(options.config), Path(options.out or f"{Path(options.config).stem}.ipynb"))
    print(made.said)
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


def _answered(run: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Runs a command; returns 1 where the network or Kaggle's server failed."""
    try:
        return run(options)
    except client.NoAnswer as silence:
        print(silence, file=sys.stderr)
        return 1


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `new` and `notebook`, and the command `kaggle` with its own commands."""
    new.add(commands)
    notebook = commands.add_parser("notebook", help="write the notebook that trains a configuration of your own")
    for option, keywords in _OWN.items():
        notebook.add_argument(option, **keywords)
    notebook.set_defaults(run=_own)
    parser = commands.add_parser("kaggle", help="data sets, notebooks and chains of sessions on Kaggle")
    own = parser.add_subparsers(required=True, metavar="command")
    for name, run, options, text in _COMMANDS:
        one = own.add_parser(name, help=text)
        for option, keywords in options.items():
            one.add_argument(option, **keywords)
        one.set_defaults(run=functools.partial(_answered, run))
