"""The command line `trainbook`, with its options in options.yaml. What imports torch is imported where it is needed."""

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from lib import __version__, command
from lib.config import split_overrides
from lib.errors import printable
from lib.text import aligned
from trainbook import new
from trainbook.kaggle import commands as kaggle_commands

if TYPE_CHECKING:
    from lib.report.summary import Card

_NEAR = 0.1  # of the predicted peak
_MOST_MODULES = 12  # of the table of what fp16 holds


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    return command.exit_code(lambda: options.run(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trainbook", description="Notebooks that finish training on free GPUs.")
    parser.add_argument("--version", action="version", version=f"Trainbook {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    command.add_train(commands)
    kaggle = commands.add_parser("kaggle", help="data sets, notebooks and chains of sessions on Kaggle")
    below = kaggle.add_subparsers(required=True, metavar="command")
    runs: dict[str, Any] = {
        "new": new.run, "plan": _plan, "doctor": _doctor, "precision": _precision, "card": _card, "queue": _queue,
        "predict": _predict, "fits": _fits, **kaggle_commands.RUNS,
    }  # fmt: skip
    for name, options in yaml.safe_load(Path(__file__).with_name("options.yaml").read_text("utf-8")).items():
        inner = (below if " " in name else commands).add_parser(name.split()[-1], help=options.pop("about"))
        inner.set_defaults(run=runs[name])
        for option, form in options.items():
            if form:
                inner.add_argument(option, **_keywords(option, form))
    return parser


def _keywords(option: str, form: str | dict[str, Any]) -> dict[str, Any]:
    """Returns the keywords of `add_argument` for an option as options.yaml has it."""
    keywords: dict[str, Any] = {"help": form} if isinstance(form, str) else dict(form)
    for kind, action in (("flag", "store_true"), ("either", argparse.BooleanOptionalAction)):
        if kind in keywords:
            keywords |= {"action": action, "help": keywords.pop(kind)}
    if "list" in keywords:
        keywords |= {"action": "append", "default": [], "metavar": keywords.pop("list")}
    if "type" in keywords:
        keywords["type"] = {"int": int, "float": float}[keywords["type"]]
    has_default = keywords.keys() & {"action", "default", "required"} or not option.startswith("--")
    return keywords if has_default else {"default": "", **keywords}


def _doctor(options: argparse.Namespace) -> int:
    from lib import doctor
    from lib.doctor import rehearsal
    from lib.task import load_config

    with contextlib.redirect_stdout(sys.stderr):  # what data says while it is read must not get into the JSON
        config = load_config(options.config, split_overrides(options.set)) if options.config else None
        sections = doctor.examine(config)
        if config:
            sections["Run"] = rehearsal.check_run(config)
    return kaggle_commands.show(sections, options.json)


def _precision(options: argparse.Namespace) -> int:
    from lib import launch
    from lib.launch import gpu
    from lib.task import load_config

    run = launch.prepare(load_config(options.config, split_overrides(options.set)))
    checked = gpu.examine_fp16(run.task, run.config)
    rows = [["module", "largest output", "largest gradient", ""]]
    for name in sorted(checked.activations, key=lambda name: -checked.activations[name])[:_MOST_MODULES]:
        sizes = (f"{values.get(name, 0):.3g}" for values in (checked.activations, checked.gradients))
        rows.append([name, *sizes, "fp32" if name in checked.modules else ""])
    print(aligned(rows, left={0, 3}), end="\n\n")
    return kaggle_commands.show({"Precision": [checked.finding]})


def _card(options: argparse.Namespace) -> int:
    from lib.report.summary import read_card

    print(compared(read_card(Path(options.report))))
    return 0


def compared(card: "Card") -> str:
    """Returns in lines what a run on a GPU measured, and what was off beside its plan."""
    from lib.machine.memory import GIB

    plan, versions = card.predicted, ", ".join(f"{name} {version}" for name, version in card.versions.items())
    steps = f"{card.steps:,} steps in {card.precision} on {card.world_size} x {card.gpu}"
    lines = [f"{card.run}: {steps}", f"driver {card.driver or 'unknown'}, {versions}"]
    if not plan.peak_bytes or len(plan.step_seconds) != 2:
        lines.append(f"peak {card.peak_bytes / GIB:.2f} GiB, {card.step_seconds:.3g} s a step; there was no plan")
    else:
        off = card.peak_bytes / plan.peak_bytes - 1
        peak = f"peak {card.peak_bytes / GIB:.2f} GiB, predicted {plan.peak_bytes / GIB:.2f}"
        lines.append(f"{peak}: {off:+.0%}{'' if abs(off) <= _NEAR else ', OFF'}")
        least, most = plan.step_seconds
        nearest = min(max(card.step_seconds, least), most)
        distance = "" if nearest == card.step_seconds else f", OFF by {card.step_seconds / nearest:.2g}"
        lines.append(f"{card.step_seconds:.3g} s a step, predicted {least:.3g} to {most:.3g}{distance}")
        if card.micro_batch != plan.micro_batch:
            lines.append(f"micro-batch {card.micro_batch}, planned {plan.micro_batch}: OFF, memory ran out on the way")
    if card.loss_scale:
        share = card.skipped_steps / max(1, card.steps)
        is_low = card.loss_scale < 64 or share > 0.01  # as a step warns; a scale is found in its first steps
        lines.append(f"loss scale {card.loss_scale:,.0f}, {share:.1%} of steps skipped{', OFF' if is_low else ''}")
    lines += [", ".join(f"{name} {value:,}" for name, value in card.clocks.items())] if card.clocks else []
    return "\n".join(map(printable, lines))


def _plan(options: argparse.Namespace) -> int:
    from lib import planner
    from lib.task import load_config

    configs = [load_config(path, split_overrides(options.set)) for path in options.configs]
    cards = [planner.find_card(gpu) for gpu in options.gpu or ["t4"]]
    plans = [planner.make(config, card, options.gpus, options.samples) for config in configs for card in cards]
    if options.json:
        print(json.dumps([plan.to_json() for plan in plans], indent=2))
    else:
        print("\n\n\n".join(planner.of_plan(plan) for plan in plans))
        if len(plans) > 1:
            print("\n\n" + planner.of_plans(plans))
        for plan in plans if options.layers else []:
            print(f"\n\n{plan.run} on {plan.card}:\n{planner.of_layers(plan.chosen.prediction)}")
    if options.page:
        from lib.planner import html

        html.write(Path(options.page), plans)
        print(f"Wrote {options.page}.", file=sys.stderr)
    return 0


def _fits(options: argparse.Namespace) -> int:
    from lib.planner import of_layers
    from trainbook.fits import language

    names = ("model", "method", "batch", "length", "quantised", "precision", "rank", "optimizer")
    question = language.Question(card=options.gpu, **{name: getattr(options, name) for name in names})
    prediction = language.fits(question)
    for part in language.answer(question, prediction, options.tokens):
        print(part, flush=True)
    if options.layers:
        print(f"\n{of_layers(prediction)}")
    return 0 if prediction.fits else 2


def _queue(options: argparse.Namespace) -> int:
    from lib.launch import queue

    if not options.table:
        return command.train_queue(options)
    runs = queue.entries(Path(options.config), split_overrides(options.set))
    print(queue.table(runs), queue.verdict(runs), sep="\n")
    return 0


def _predict(options: argparse.Namespace) -> int:
    from lib.launch import ensemble

    keywords = {"own_task": options.task, "trusted": options.trust, "name": options.name}
    archive, data, out = Path(options.archive), Path(options.data), Path(options.out)
    print(ensemble.run(archive, data, out, changes=split_overrides(options.set), **keywords))
    return 0
