"""`python -m lib kaggle dataset|push|status|fetch|chain|preflight`: options in, sentences and exit codes out."""

import argparse
import sys
import webbrowser
from pathlib import Path

from lib.errors import BadInput
from lib.kaggle import chain, client, dataset, kernel, preflight
from lib.kaggle.kernel import Notebook
from lib.task import load_config


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `kaggle` with its own commands."""
    parser = commands.add_parser("kaggle", help="data sets, notebooks and chains of sessions on Kaggle")
    own = parser.add_subparsers(required=True, metavar="command")
    _add_dataset(own.add_parser("dataset", help="pack a data folder, or a run, and upload it as a data set"))
    _add_push(own.add_parser("push", help="push a notebook, which starts a session"))
    _add_status(own.add_parser("status", help="how the newest session is doing"))
    _add_fetch(own.add_parser("fetch", help="bring the results home"))
    _add_chain(own.add_parser("chain", help="session after session until the training is done"))
    _add_preflight(own.add_parser("preflight", help="everything to check before quota is spent"))


def _named(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="a workload or notebook such as graphmer, or owner/slug on Kaggle")
    parser.add_argument("--owner", default="", help="the account; empty: the one that the client is signed in to")


def _notebook_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="a workload or notebook such as graphmer, or a path ending in .ipynb")
    parser.add_argument("--owner", default="", help="the account; empty: the one that the client is signed in to")
    parser.add_argument("--slug", default="", help="the notebook's name on Kaggle; empty: trainbook- and its file name")
    parser.add_argument("--dataset", action="append", default=[], metavar="OWNER/SLUG", help="a data set to mount")
    parser.add_argument(
        "--kernel", action="append", default=[], metavar="OWNER/SLUG", help="a notebook's output to mount"
    )
    parser.add_argument(
        "--param", action="append", default=[], metavar="NAME=VALUE", help="a value of the parameters cell"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a configuration key (OVERRIDES)"
    )
    parser.add_argument(
        "--gpu", action=argparse.BooleanOptionalAction, help="T4 x2 or none; left out: as the notebook says"
    )
    parser.add_argument("--internet", action=argparse.BooleanOptionalAction, help="left out: as the notebook says")
    parser.add_argument("--public", action="store_true", help="visible to everybody; without it, to you alone")
    parser.add_argument(
        "--continue", dest="own_output", action="store_true", help="mount its own last completed output"
    )


def _notebook(options: argparse.Namespace) -> Notebook:
    path = kernel.find(options.name)
    for name in [*options.dataset, *options.kernel]:
        if name.count("/") != 1:
            raise BadInput(f"{name!r} is no owner/slug, as it stands in the browser's address.")
    return Notebook(
        path,
        f"{options.owner or client.username()}/{options.slug or kernel.slug_of(path)}",
        options.dataset,
        options.kernel,
        options.gpu,
        options.internet,
        options.public,
    )


# --- the commands -----------------------------------------------------------------------------------------------------


def _add_dataset(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config", nargs="?", default="", help="the configuration whose task reads and validates the data"
    )
    parser.add_argument("--data", default="", help="the data's folder; empty: data.dir of the configuration")
    parser.add_argument(
        "--run", dest="run_folder", default="", metavar="DIR", help="pack the output of this run instead"
    )
    parser.add_argument("--slug", required=True, help="the data set's name on Kaggle, 6 to 50 characters")
    parser.add_argument("--owner", default="", help="the account; empty: the one that the client is signed in to")
    parser.add_argument("--license", default="unknown", help=f"one of {', '.join(dataset.LICENSES)}")
    parser.add_argument("--title", default="", help="6 to 50 characters; empty: the slug with spaces")
    parser.add_argument("--subtitle", default="", help="20 to 80 characters")
    parser.add_argument("--least", type=int, default=100, help="training samples below which nothing is packed")
    parser.add_argument("--notes", default="A new version", help="what a new version says of itself")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a configuration key")
    parser.add_argument("--dry-run", action="store_true", help="pack and check, and stop before the upload")
    parser.set_defaults(run=_dataset)


def _dataset(options: argparse.Namespace) -> int:
    if bool(options.config) == bool(options.run_folder):
        raise BadInput("Give either a configuration, whose task validates the data, or --run with a run's folder.")
    labels = dataset.Labels(
        f"{options.owner or client.username()}/{options.slug}", options.license, options.title, options.subtitle
    )
    if options.run_folder:
        package = dataset.pack_run(Path(options.run_folder), labels)
    else:
        settings = dict(kernel.split_setting(pair) for pair in options.set)
        if options.data:
            settings["data.dir"] = options.data
        package = dataset.pack_data(load_config(options.config, settings), labels, options.least)
    print(dataset.describe(package))
    if options.dry_run:
        print("Nothing was uploaded (--dry-run).")
    else:
        print(f"Uploaded: {dataset.upload(package, options.notes)}")
    print(
        dataset.steps(package, "graphmer" if options.run_folder else Path(options.config).stem.removesuffix("_small"))
    )
    return 0


def _add_push(parser: argparse.ArgumentParser) -> None:
    _notebook_options(parser)
    parser.set_defaults(run=_push)


def _push(options: argparse.Namespace) -> int:
    notebook = _notebook(options)
    values = kernel.read_parameters(options.param, options.set)
    pushed = kernel.push(notebook, values, options.own_output)
    print(f"Version {pushed.version} of {notebook.kernel} was pushed and starts: {pushed.url}")
    print(f"How it is doing: python -m lib kaggle status {notebook.kernel}")
    return 0


def _add_status(parser: argparse.ArgumentParser) -> None:
    _named(parser)
    parser.add_argument("--log", action="store_true", help="show what it has printed so far")
    parser.add_argument("--follow", action="store_true", help="show what it prints until it ends")
    parser.set_defaults(run=_status)


def _status(options: argparse.Namespace) -> int:
    name = kernel.kernel_of(options.name, options.owner)
    state = client.status(name)
    print(f"{name}: {state.word.lower()}" + (f" ({state.failure})" if state.failure else ""))
    if options.follow and state.active:
        return client.follow(name)
    if options.log or options.follow:
        print(client.log(name))
    return 0


def _add_fetch(parser: argparse.ArgumentParser) -> None:
    _named(parser)
    parser.add_argument("--to", default="", metavar="DIR", help="where to; empty: runs/kaggle/SLUG/results")
    parser.add_argument("--all", action="store_true", help="with the checkpoints, which are for going on elsewhere")
    parser.add_argument("--open", action=argparse.BooleanOptionalAction, help="open the plots; left out: in a terminal")
    parser.set_defaults(run=_fetch)


def _fetch(options: argparse.Namespace) -> int:
    name = kernel.kernel_of(options.name, options.owner)
    folder = Path(options.to) if options.to else kernel.HOME / name.split("/")[1] / "results"
    fetched = kernel.fetch(name, folder, options.all)
    for run, summary in fetched.summaries.items():
        print(f"{run}: {summary.reason} at step {summary.step:,}")
        for metric, value in summary.metrics.items():
            print(f"  {metric}: {value:.4f}, the trivial baseline {summary.baseline[metric]:.4f}")
    print(f"{fetched.folder}: {fetched.files:,} files, {fetched.size / 1e6:,.1f} MB")
    for plot in fetched.plots:
        print(f"Plot: {plot}")
        if sys.stdout.isatty() if options.open is None else options.open:
            webbrowser.open(plot.resolve().as_uri())
    if not fetched.summaries:
        raise BadInput(f"{name} left no summary.json: it failed early or trains nothing. See {folder / 'session.log'}.")
    return 0


def _add_chain(parser: argparse.ArgumentParser) -> None:
    _notebook_options(parser)
    parser.add_argument("--max-sessions", type=int, default=10, help="sessions of the whole chain")
    parser.add_argument("--min-hours", type=float, default=1.0, help="quota below which no session is started")
    parser.add_argument("--poll-seconds", type=float, default=60.0, help="seconds between questions to Kaggle")
    parser.add_argument("--fresh", action="store_true", help="forget earlier sessions and begin at step 0")
    parser.add_argument("--retry", action="store_true", help="go on after a failed, lost or completed session")
    parser.set_defaults(run=_chain)


def _chain(options: argparse.Namespace) -> int:
    asked = chain.Chain(
        _notebook(options),
        kernel.read_parameters(options.param, options.set),
        options.max_sessions,
        options.min_hours,
        options.poll_seconds,
        options.own_output,
        options.retry,
    )
    try:
        return chain.run(asked, options.fresh)
    except KeyboardInterrupt:
        print("\nStopped here. A session on Kaggle goes on by itself; the same command takes it up again.")
        return 130


def _add_preflight(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="a workload or notebook such as graphmer")
    parser.add_argument("--data", default="", help="the data's folder, to be validated")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a configuration key")
    parser.add_argument("--steps-per-second", type=float, default=0.0, help="measured speed, such as the smoke test's")
    parser.add_argument("--url", action="append", default=[], help="an address that the run downloads from")
    parser.set_defaults(run=_preflight)


def _preflight(options: argparse.Namespace) -> int:
    settings = dict(kernel.split_setting(pair) for pair in options.set)
    lines = preflight.check(kernel.find(options.name), settings, options.data, options.steps_per_second, options.url)
    print(preflight.show(lines))
    return int(any(line.verdict == "wrong" for line in lines))
