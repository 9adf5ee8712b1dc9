"""The command line `trainbook`. What imports torch, which takes seconds, is imported by the commands that need it."""

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lib import __version__, command
from lib.config import split_overrides
from lib.errors import printable
from lib.text import aligned
from trainbook.kaggle import commands as kaggle_commands

if TYPE_CHECKING:
    from lib.report.summary import Card

_NEAR = 0.1  # of the predicted peak
_MOST_MODULES = 12  # of the table of what fp16 holds


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    options = _parser().parse_args(arguments)
    return command.exit_code(lambda: options.run(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trainbook", description="Notebooks that finish training on free GPUs.")
    parser.add_argument("--version", action="version", version=f"Trainbook {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    command.add_train(commands)
    _add_plan(commands)
    checks = commands.add_parser("doctor", help="check the machine and, with a configuration, its run")
    checks.add_argument("config", nargs="?", help="a YAML file; without one, the machine alone")
    checks.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a dotted key")
    checks.add_argument("--json", action="store_true", help="print the findings as JSON")
    checks.set_defaults(run=_doctor)
    formats = commands.add_parser("precision", help="what of a task fp16 cannot hold, by module; on a CPU too")
    formats.add_argument("config", help="a YAML file")
    formats.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a dotted key")
    formats.set_defaults(run=_precision)
    card = commands.add_parser("card", help="what was off on a GPU beside the plan: the card.json of a run's archive")
    card.add_argument("report", help="card.json")
    card.set_defaults(run=_card)
    runs = commands.add_parser("queue", help="train the folds, seeds and grid of a configuration one after another")
    runs.add_argument("config", help="a YAML file with a queue: section, such as configs/glacier_finetune_small.yaml")
    runs.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a dotted key")
    runs.add_argument("--table", action="store_true", help="only show how far each run is")
    runs.set_defaults(run=_queue)
    predict = commands.add_parser("predict", help="apply the trained models of an archive to new data")
    predict.add_argument("archive", help="outputs.tar.gz, the folder of a run, or a folder of runs")
    predict.add_argument("data", help="the folder to predict, or one file where the task takes one")
    predict.add_argument("out", help="the folder that results are written to")
    predict.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a dotted key")
    predict.add_argument("--task", default="", metavar="FILE:CLASS", help="your own task; an archive cannot name one")
    predict.add_argument("--trust", action="store_true", help="run the task's file in the archive: one of your own")
    predict.add_argument("--run", default="", dest="name", metavar="NAME", help="one of several runs, or of queues")
    predict.set_defaults(run=_predict)
    kaggle_commands.add(commands)
    _add_fits(commands)
    return parser


def _add_plan(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    plan = commands.add_parser("plan", help="memory, micro-batch, time and quota on a card, without one")
    plan.add_argument("configs", nargs="+", metavar="config", help="one YAML file or several")
    own = 't4, ... or "NN GiB, capability X.Y[, NN TFLOP/s, NN GB/s]"'
    plan.add_argument("--gpu", action="append", default=[], metavar="CARD", help=own)
    plan.add_argument("--gpus", type=int, default=0, metavar="N", help="cards at work; 0: as many as a session has")
    plan.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a dotted key")
    plan.add_argument("--samples", type=int, default=0, metavar="N", help="training samples, for a length in epochs")
    plan.add_argument("--layers", action="store_true", help="what each layer takes, and who is alive at the peak")
    plan.add_argument("--page", default="", metavar="FILE", help="write the plans as a page of HTML, with a picture")
    plan.add_argument("--json", action="store_true", help="print everything as JSON")
    plan.set_defaults(run=_plan)


def _add_fits(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    fits = commands.add_parser("fits", help="whether a language model fits a card: inference, LoRA, QLoRA or all of it")
    fits.add_argument("model", help="Llama-3.2-1B, Qwen2.5-7B ..., or a folder with a config.json of Hugging Face")
    fits.add_argument("--method", default="qlora", help="inference, lora, qlora (the default) or full")
    fits.add_argument("--gpu", default="t4", metavar="CARD", help="as plan takes it")
    fits.add_argument("--batch", type=int, default=1, metavar="N", help="sequences at once")
    fits.add_argument("--length", type=int, default=1024, metavar="N", help="tokens; in inference prompt and answer")
    fits.add_argument("--quantised", default="", metavar="KIND", help="nf4, nf4-dq or int8 weights")
    fits.add_argument("--precision", default="auto", help="auto, fp16, bf16 or fp32")
    fits.add_argument("--rank", type=int, default=16, metavar="N", help="of the adapters")
    fits.add_argument("--optimizer", default="adamw", help="adamw, adamw_8bit or paged_adamw_8bit")
    fits.add_argument("--tokens", type=int, default=1_000_000, metavar="N", help="to train on in all, for the time")
    fits.add_argument("--layers", action="store_true", help="what each layer takes, and who is alive at the peak")
    fits.set_defaults(run=_fits)


def _doctor(options: argparse.Namespace) -> int:
    """Prints the findings; returns 2 where one is bad, else 0."""
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
    """Prints the largest values of the task's modules; returns 2 where fp16 does not hold them."""
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
    lines = [
        f"{card.run}: {card.steps:,} steps in {card.precision} on {card.world_size} x {card.gpu}",
        f"driver {card.driver or 'unknown'}, {versions}",
    ]
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
    """Prints the prediction for a language model; returns 2 where it does not fit."""
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
