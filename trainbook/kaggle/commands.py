"""`trainbook notebook` and `kaggle dataset|push|...|preflight`: options in, sentences and exit codes out."""

import argparse
import contextlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lib.config import split_overrides
from lib.errors import BadInput, printable
from lib.machine import disk
from lib.report import findings
from trainbook.kaggle import carried, chain, client, dataset, kernel, submit, verify
from trainbook.kaggle.kernel import Notebook


def _owner(options: argparse.Namespace) -> str:
    try:
        return options.owner or client.username()
    except BadInput:
        if not getattr(options, "dry_run", False):
            raise
    print("The kaggle client is not signed in here: OWNER stands for your account.")
    return "OWNER"


def _build(config: Path, out: Path) -> Path:
    """Writes a configuration's notebook, and prints its contents; returns the folder of its files."""
    from trainbook.building import own  # not at the top: torch takes seconds to import

    if out.suffix != ".ipynb":
        raise BadInput(f"A notebook's name ends in .ipynb; {out} does not.")
    source = own.read(config)
    lacking = carried.lacking(source.packages)
    text = own.text(source, internet=bool(lacking))
    disk.make_folders(out.parent)
    disk.write_text(out, text)
    size = f"{len(text.encode()) / 1000:,.0f} KB"
    files = ", ".join(source.files)
    print(f"Built {out} ({size}) from {config}. It carries lib and {files}.")
    for note in source.notes:
        print(note)
    if lacking:
        print(
            f"Kaggle's image is not known to have {lacking}: the notebook asks for internet to"
            " install it there."
        )
    return source.root


def _path(name: str, slug: str = "") -> tuple[Path, Path | None]:
    """Returns the path of a notebook; builds that of a configuration, and returns its files' folder too."""
    if not name.endswith((".yaml", ".yml")):
        return kernel.find(name), None
    config = Path(name)
    path = kernel.HOME / (slug or kernel.slug_of(config)) / f"{config.stem}.ipynb"
    return path, _build(config, path)


def _checked(options: argparse.Namespace) -> tuple[Notebook, dict[str, object]]:
    if kernel.is_command(options.name):
        return _command(options)
    path, root = _path(options.name, options.slug)
    name = f"{_owner(options)}/{options.slug or kernel.slug_of(path)}"
    switches = {switch: getattr(options, switch) for switch in ("gpu", "internet", "public")}
    inputs = {
        "models": options.model,
        "competitions": options.competition,
        "accelerator": options.accelerator,
    }
    source = Path(options.name) if root else path
    notebook = Notebook(
        path, name, options.dataset, options.kernel, root=root, source=source, **inputs, **switches
    )
    values = kernel.check(notebook, kernel.read_parameters(options.param, options.set))
    return kernel.with_models(notebook, values), values


def _command(options: argparse.Namespace) -> tuple[Notebook, dict[str, object]]:
    """Packs the repository of a command, which is uploaded before the push, and checks its notebook."""
    from trainbook.kaggle import script  # not at the top: help does not wait for psutil
    from trainbook.run import settings

    config = Path(options.name)
    owner = _owner(options)
    slug = options.slug or kernel.slug_of(config)
    kernel.check_slug(slug)
    values = kernel.read_parameters(options.param, options.set)
    packed = script.pack(config, owner, slug)
    overrides: Any = values.get("OVERRIDES", {})
    settings.read(options.name, {}, [], overrides)  # as the session will
    datasets, competitions = script.mounted(packed.settings)
    notebook = Notebook(
        packed.notebook,
        f"{owner}/{slug}",
        [packed.dataset, *datasets, *options.dataset],
        options.kernel,
        models=options.model,
        competitions=[*competitions, *options.competition],
        accelerator=options.accelerator,
        gpu=options.gpu,
        internet=options.internet,
        public=options.public,
        root=packed.repository.root,
        source=config,
        code=(packed.dataset, packed.folder),
    )
    return notebook, kernel.check(notebook, values)


def _dataset(options: argparse.Namespace) -> int:
    if bool(options.config) == bool(options.run_folder):
        raise BadInput(
            "Give either a configuration, whose task validates the data, or --run with a run's folder."
        )
    name = f"{_owner(options)}/{options.slug}"
    dataset.check(name)
    if options.run_folder:
        contents = dataset.of_run(Path(options.run_folder))
    else:
        from lib.task import load_config  # not at the top: torch takes seconds to import

        settings = split_overrides(options.set)
        if options.data:
            settings = {**settings, "data.dir": options.data}
        contents = dataset.of_data(load_config(options.config, settings), name)
    folder = dataset.pack(*contents, name, options.license)
    if options.dry_run:
        print("Nothing was uploaded (--dry-run).")
    else:
        print(f"Uploaded: {client.upload(folder, name)}")
    print(
        f"In the browser: open the notebook, Add Input > Your Datasets > {name}, then Save Version."
    )
    push = f"NOTEBOOK --dataset {name}"
    if options.config:
        push = f"{options.config} --dataset {name} --param DATA_DIR={name}"
    print(f"On the command line: trainbook kaggle push {push}")
    return 0


def _push(options: argparse.Namespace) -> int:
    notebook, values = _checked(options)
    if not options.dry_run:
        version, url = kernel.push(notebook, values, options.own_output)
        print(f"Version {version} of {notebook.kernel} was pushed and starts: {url}")
        print(f"Follow it: trainbook kaggle status {notebook.kernel} --follow")
        return 0
    folder, _ = kernel.prepare(notebook, values, options.own_output)
    print(f"Nothing was sent (--dry-run). {folder} holds what a push sends:")
    if notebook.code:
        dataset_name, packed = notebook.code
        print(f"  First it uploads {packed} as {dataset_name}.")
    print(f"  {kernel.METADATA}: {(folder / kernel.METADATA).read_text('utf-8').rstrip()}")
    print(
        "Without an API token: kaggle.com > Create > New Notebook > File > Import Notebook:"
        f" {notebook.path.name}"
    )
    return 0


def _status(options: argparse.Namespace) -> int:
    """Prints the status; with --follow returns 0 for a complete session, 130 if stopped by hand, otherwise 1."""
    name = kernel.kernel_of(options.name, options.owner)
    denied = 1
    if kernel.was_pushed(name.partition("/")[2]):
        denied = client.SETTLING
    status = client.insist(lambda: client.status(name), denied=denied)
    if options.follow and status.active:
        try:
            client.wait(name, ["QUEUED"])
            client.follow(name)
            status = client.wait(name, client.ACTIVE)
        except KeyboardInterrupt:
            print("\nStopped here. The session on Kaggle continues by itself.")
            return 130
    elif options.log or options.follow:
        print(client.log(name))
    print(f"{name}: {status}")
    if not options.follow or status.word == "COMPLETE":
        return 0
    return 130 if status.word == "CANCEL_ACKNOWLEDGED" else 1


def _fetch(options: argparse.Namespace) -> int:
    name = kernel.kernel_of(options.name, options.owner)
    if options.to:
        folder = Path(options.to)
    else:
        folder = kernel.HOME / name.split("/")[1] / "results"
    summaries = kernel.fetch(name, folder, options.all)
    for run, summary in summaries.items():
        end = f" at step {summary.step:,}"
        if summary.members:
            end = f", a vote of {len(summary.members)} runs"
        print(f"{printable(run)}: {summary.reason}{end}")
        for metric, value in summary.metrics.items():
            baseline = ""
            if metric in summary.baseline:
                baseline = f", the baseline {summary.baseline[metric]:.4f}"
            print(f"  {metric}: {value:.4f}{baseline}")
    print(f"Everything is in {folder}.")
    if not summaries:
        raise BadInput(
            f"{name} left no summary.json: it failed early or trains nothing. See {folder / 'session.log'}."
        )
    return 0


def _chain(options: argparse.Namespace) -> int:
    notebook, values = _checked(options)
    limits = options.max_sessions, options.min_hours, options.poll_seconds
    if options.finish:
        _check_finish(notebook, values)
    sessions = chain.Chain(notebook, values, *limits, options.retry, options.finish)
    try:
        return chain.run(sessions, options.fresh)
    except KeyboardInterrupt:
        print(
            "\nStopped here. A session on Kaggle continues by itself; the same command resumes the chain."
        )
        return 130


def _check_finish(notebook: Notebook, values: Mapping[str, object]) -> None:
    """Raises BadInput unless the notebook trains one run whose schedule is wsd, as far as that can be read here."""
    source = kernel.read_json(notebook.path)
    runs = carried.training(source, values, notebook.uses_gpu, notebook.root)
    if runs is None:
        raise BadInput(
            f"--finish reads the schedule, and {notebook.path.name} has its configuration on Kaggle, or trains by a "
            "command. Give the configuration of the run, such as my.yaml."
        )
    if len(runs) > 1:
        raise BadInput(
            f"--finish is for one run, and {notebook.path.name} has {len(runs)} in a queue."
        )
    name = runs[0].config.scheduler.name
    if name != "wsd":
        raise BadInput(
            f"--finish ends a run of scheduler.name wsd, and the schedule here is {name}, which has an end of its own. "
            "Leave --finish out, or give --set scheduler.name=wsd."
        )


def show(sections: findings.Sections, as_json: bool = False) -> int:
    """Prints findings as JSON or as a table; returns 2 if one is bad, otherwise 0: a warning stops no run."""
    rows = []
    for title, listed in sections.items():
        rows += [{"section": title.lower(), **asdict(finding)} for finding in listed]
    worst = max((row["verdict"] for row in rows), key=("ok", "warning", "bad").index)
    if as_json:
        print(json.dumps({"verdict": worst, "checks": rows}, indent=1))
    else:
        print(findings.table(sections))
    return 2 if worst == "bad" else 0


def _preflight(options: argparse.Namespace) -> int:
    from trainbook.kaggle import preflight  # not at the top: torch takes seconds to import

    with contextlib.redirect_stdout(sys.stderr):  # messages about data must not get into the JSON
        if kernel.is_command(options.name):
            sections = _preflight_command(options)
        else:
            path, root = _path(options.name)
            keys = split_overrides(options.set)
            session = preflight.Session(options.competition, options.accelerator)
            sections = preflight.check(path, keys, options.data, root, session)
    code = min(1, show(sections, options.json))
    if not code and not options.json:
        print("Ready to push.")
    return code


def _preflight_command(options: argparse.Namespace) -> findings.Sections:
    from trainbook.kaggle import preflight, script  # not at the top: torch takes seconds to import

    config = Path(options.name)
    packed = script.pack(config, "OWNER", kernel.slug_of(config))
    return preflight.check_command(packed.notebook, script.preflight(packed))


def _notebook(options: argparse.Namespace) -> int:
    config = Path(options.config)
    if kernel.is_command(options.config):
        raise BadInput(
            f"{config} has a command, whose repository goes to Kaggle with its notebook: trainbook "
            f"kaggle push {config}"
        )
    _build(config, Path(options.out or f"{config.stem}.ipynb"))
    print(
        "On Kaggle: Create > New Notebook > File > Import Notebook; or trainbook kaggle push"
        f" {options.config}"
    )
    return 0


RUNS = {
    "notebook": _notebook, "verify": verify.run, "kaggle dataset": _dataset, "kaggle push": _push,
    "kaggle status": _status, "kaggle fetch": _fetch, "kaggle chain": _chain, "kaggle preflight": _preflight,
    "kaggle submit": submit.submit, "kaggle score": submit.score,
}  # fmt: skip
