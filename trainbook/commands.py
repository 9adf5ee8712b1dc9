"""The command line `trainbook`, with its options in options.yaml.

Modules that import torch are imported by the functions that need them.
"""

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from lib import __version__
from lib.config import split_overrides
from lib.errors import BadInput, printable
from lib.text import aligned
from trainbook import command, new
from trainbook.kaggle import commands as kaggle_commands

if TYPE_CHECKING:
    from trainbook.outputs.summary import Card

_HERE = Path(__file__).parent


def main(arguments: list[str] | None = None) -> int:
    options = parsed(sys.argv[1:] if arguments is None else arguments)
    return command.exit_code(lambda: options.run(options))


def parsed(arguments: list[str]) -> argparse.Namespace:
    """Returns the options of a command line; `command` is the part behind -- of `run`."""
    foreign: list[str] = []
    if arguments[:1] == ["run"]:
        from trainbook.run import settings

        arguments, foreign = settings.split_command(arguments)
    return _parser().parse_args(arguments, argparse.Namespace(command=foreign))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trainbook", description="Notebooks that finish training on free GPUs."
    )
    parser.add_argument("--version", action="version", version=f"Trainbook {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    command.add_train(commands)
    about_kaggle = "data sets, notebooks and chains of sessions on Kaggle"
    kaggle = commands.add_parser("kaggle", help=about_kaggle)
    below = kaggle.add_subparsers(required=True, metavar="command")
    text = (_HERE / "options.yaml").read_text("utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a tenth of the time
    for name, options in yaml.load(text, loader).items():
        level = below if " " in name else commands
        inner = level.add_parser(name.split()[-1], help=options.pop("about"))
        inner.set_defaults(run=_RUNS[name])
        for option, form in options.items():
            if form:
                inner.add_argument(option, **_keywords(option, form))
    return parser


def _keywords(option: str, form: str | dict[str, Any]) -> dict[str, Any]:
    """Returns the keywords of `add_argument` for an option of options.yaml."""
    keywords: dict[str, Any] = {"help": form} if isinstance(form, str) else dict(form)
    if "files" in keywords:
        names = [path.stem for path in _HERE.glob(keywords.pop("files"))]
        keywords["choices"] = sorted([*names, *keywords.pop("others", [])])
    if "flag" in keywords:
        keywords |= {"action": "store_true", "help": keywords.pop("flag")}
    if "either" in keywords:
        keywords |= {"action": argparse.BooleanOptionalAction, "help": keywords.pop("either")}
    if "list" in keywords:
        keywords |= {"action": "append", "default": [], "metavar": keywords.pop("list")}
    if "type" in keywords:
        keywords["type"] = {"int": int, "float": float}[keywords["type"]]
    has_default = keywords.keys() & {"action", "default", "required"}
    if option.startswith("--") and not has_default:
        keywords["default"] = ""
    return keywords


def _doctor(options: argparse.Namespace) -> int:
    from lib.task import load_config
    from trainbook import doctor
    from trainbook.doctor import rehearsal

    config = None
    with contextlib.redirect_stdout(sys.stderr):  # messages about data must not get into the JSON
        if options.config:
            config = load_config(options.config, split_overrides(options.set))
        sections = doctor.examine(config)
        if config:
            sections["Run"] = rehearsal.check_run(config)
    return kaggle_commands.show(sections, options.json)


def _precision(options: argparse.Namespace) -> int:
    from lib.planner import fp16
    from lib.task import load_config
    from trainbook import launch

    run = launch.prepare(load_config(options.config, split_overrides(options.set)))
    return kaggle_commands.show({"Precision": [fp16.examine_fp16(run.task, run.config).finding]})


def _card(options: argparse.Namespace) -> int:
    from trainbook.outputs.summary import read_card

    print(compared(read_card(Path(options.report))))
    return 0


def compared(card: "Card") -> str:
    """Returns a table of a GPU run's measurements beside its plan (0: no plan)."""
    from lib.machine.memory import GIB

    plan = card.predicted
    versions = ", ".join(f"{name} {version}" for name, version in card.versions.items())
    gpus = f"{card.world_size} x {card.gpu}"
    head = f"{card.run}: {card.precision} on {gpus}, driver {card.driver}, {versions}"
    planned_seconds = " to ".join(f"{seconds:.3g}" for seconds in plan.step_seconds)
    rows = [["", "measured", "planned"]]
    rows.append(["peak, GiB", f"{card.peak_bytes / GIB:.2f}", f"{plan.peak_bytes / GIB:.2f}"])
    rows.append(["seconds a step", f"{card.step_seconds:.3g}", planned_seconds])
    rows.append(["micro-batch", str(card.micro_batch), str(plan.micro_batch)])
    rows.append(["loss scale", f"{card.loss_scale:,.0f}", ""])
    rows.append(["skipped steps", f"{card.skipped_steps:,} of {card.steps:,}", ""])
    return f"{printable(head)}\n{aligned(rows)}"


def _plan(options: argparse.Namespace) -> int:
    from lib import planner
    from lib.task import load_config

    configs = [load_config(path, split_overrides(options.set)) for path in options.configs]
    cards = [planner.find_card(gpu) for gpu in options.gpu or ["t4"]]
    plans = []
    for config in configs:
        plans += [planner.make(config, card, options.gpus, options.samples) for card in cards]
    if options.json:
        print(json.dumps([plan.to_json() for plan in plans], indent=2))
    else:
        print("\n\n\n".join(planner.of_plan(plan) for plan in plans))
        if len(plans) > 1:
            print("\n\n" + planner.of_plans(plans))
        if options.layers:
            for plan in plans:
                layers = planner.of_layers(plan.chosen.prediction)
                print(f"\n\n{plan.run} on {plan.card}:\n{layers}")
    if options.page:
        from lib.planner import html

        html.write(Path(options.page), plans)
        print(f"Wrote {options.page}.", file=sys.stderr)
    return 0


def _fits(options: argparse.Namespace) -> int:
    from lib.planner import Prediction, find_card, of_layers
    from trainbook.fits import answers, language
    from trainbook.fits.folded import Folded

    names = ("model", "method", "batch", "length", "quantised", "precision", "rank", "optimizer")
    values = {name: getattr(options, name) for name in names}
    question = language.Question(card=options.gpu, **values)
    language.check(question)
    language.settings_of(question.model)
    find_card(question.card)
    depth = "a few of its layers: seconds"
    if options.layers:
        depth = "the whole of it, for its layers: minutes"
    print(f"Tracing {options.model}, {depth}.", flush=True)
    folded = Folded(question)
    prediction: Prediction
    if options.layers:
        prediction = language.fits(question)
    else:
        prediction = folded.at(question.length)
    for part in answers.answer(question, folded, prediction, options.tokens):
        print(part, flush=True)
    if options.layers:
        print(f"\n{of_layers(prediction)}")
    return 0 if prediction.fits else 2


def _run(options: argparse.Namespace) -> int:
    from trainbook import run
    from trainbook.run import settings

    return run.run(settings.read(options.config or "", vars(options), options.command))


def _queue(options: argparse.Namespace) -> int:
    from trainbook.launch import queue

    if not options.table:
        return command.train_queue(options)
    runs = queue.entries(Path(options.config), split_overrides(options.set))
    print(queue.table(runs), queue.verdict(runs), sep="\n")
    return 0


def _predict(options: argparse.Namespace) -> int:
    from trainbook.launch import ensemble

    if options.id_column and not options.sample:
        raise BadInput(
            "--id names the column of ids for a submission. Give its sample by --sample FILE too."
        )
    table = ensemble.run(
        Path(options.archive),
        Path(options.data),
        Path(options.out),
        changes=split_overrides(options.set),
        own_task=options.task,
        trusted=options.trust,
        name=options.name,
        sample=Path(options.sample) if options.sample else None,
        id_column=options.id_column,
        answer=options.answer,
    )
    print(table)
    return 0


_RUNS: dict[str, Any] = {
    "new": new.run, "plan": _plan, "doctor": _doctor, "precision": _precision, "card": _card,
    "queue": _queue, "run": _run, "predict": _predict, "fits": _fits, **kaggle_commands.RUNS,
}  # fmt: skip
