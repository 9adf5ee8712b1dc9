"""The command line: `python -m lib train CONFIG [--set key=value ...]`, `plan CONFIG --gpu t4`, `doctor [CONFIG]`, and
`kaggle dataset|push|status|fetch|chain|preflight`."""

import argparse
import contextlib
import importlib
import importlib.util
import json
import signal
import sys
from pathlib import Path

from lib import doctor, launch, planner, ranks
from lib.config import split_overrides
from lib.doctor import findings, rehearsal
from lib.errors import BadInput, TrainingFailed
from lib.launch import ensemble, torchrun
from lib.launch.queue import entries, measure, run_queue, table, verdict
from lib.machine import disk
from lib.report import outputs
from lib.report.printing import safe_printing
from lib.task import load_config


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns its exit code: 0 completed, 75 deadline, 130 interrupted, 2 bad input, 1 failure.

    Under torchrun a rank returns 0 after every clean stop.
    """
    options = _parser().parse_args(arguments)
    try:
        with torchrun.as_rank():
            return options.run(options)
    except BadInput as error:
        print(error, file=sys.stderr)
        return 2
    except TrainingFailed as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if error.errno not in disk.TROUBLES:
            raise  # a mistake in a task is best explained by its own traceback
        where = f" at {error.filename}" if error.filename else ""
        print(f"The disk refused{where}: {error.strerror}. Free room or mend it, and run again.", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lib", description="Trainbook's command line.")
    commands = parser.add_subparsers(required=True, metavar="command")
    train = commands.add_parser("train", help="train a configuration, or resume its run")
    train.add_argument("config", help="a YAML file such as configs/graphmer_small.yaml")
    train.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a dotted key")
    train.set_defaults(run=_train)
    plan = commands.add_parser("plan", help="memory, micro-batch, time and quota on a card, without one")
    plan.add_argument("configs", nargs="+", metavar="config", help="one YAML file or several")
    plan.add_argument("--gpu", action="append", default=[], metavar="CARD", help='t4, ... or "NN GiB, capability X.Y"')
    plan.add_argument("--gpus", type=int, default=0, metavar="N", help="cards at work; 0: as many as a session has")
    plan.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a dotted key")
    plan.add_argument("--json", action="store_true", help="print everything as JSON")
    plan.set_defaults(run=_plan)
    checks = commands.add_parser("doctor", help="check the machine and, with a configuration, its run")
    checks.add_argument("config", nargs="?", help="a YAML file; without one, the machine alone")
    checks.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a dotted key")
    checks.add_argument("--json", action="store_true", help="print the findings as JSON")
    checks.set_defaults(run=_doctor)
    queue = commands.add_parser("queue", help="train the folds, seeds and grid of a configuration one after another")
    queue.add_argument("config", help="a YAML file with a queue: section, such as configs/glacier_finetune_small.yaml")
    queue.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a dotted key")
    queue.add_argument("--table", action="store_true", help="only show how far each run is")
    queue.set_defaults(run=_queue)
    predict = commands.add_parser("predict", help="apply the trained models of an archive to a folder")
    predict.add_argument("archive", help="outputs.tar.gz, the folder of a run, or a folder of runs: several vote")
    predict.add_argument("data", help="the folder to predict")
    predict.add_argument("out", help="the folder that results are written to")
    predict.set_defaults(run=_predict)
    _add_kaggle(commands)
    return parser


def _add_kaggle(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the commands of `lib.kaggle`, which no notebook carries."""
    if importlib.util.find_spec("lib.kaggle"):
        importlib.import_module("lib.kaggle.commands").add(commands)


def _doctor(options: argparse.Namespace) -> int:
    """Prints the findings; returns 2 where one is bad, else 0."""
    with contextlib.redirect_stdout(sys.stderr):  # what data says while it is read must not get into the JSON
        config = load_config(options.config, split_overrides(options.set)) if options.config else None
        sections = doctor.examine(config)
        if config:
            sections["Run"] = rehearsal.check_run(config)
    print(findings.as_json(sections) if options.json else findings.table(sections))
    return findings.exit_code(sections)


def _train(options: argparse.Namespace) -> int:
    run = launch.prepare(load_config(options.config, split_overrides(options.set)))
    if not torchrun.is_watched():  # else the process above has printed it
        print(run.task.describe_data())
        print(*run.lengths, sep="\n")
    summary = launch.train(run)
    if not torchrun.is_watched():
        archive = run.output_dir / outputs.ARCHIVE
        where = f"{run.folder} and {archive}" if archive.is_file() else f"{run.folder}"
        lacking = f", without its {', '.join(summary.missing)}" if summary.missing else ""
        print(f"{summary.reason} at step {summary.step:,}{lacking}: see {where}")
    code = launch.EXIT_CODES[summary.reason]
    if ranks.under_torchrun():  # for which any other code is a failure; the summary says why it stopped
        code = 0
    ranks.end()
    return code


def _plan(options: argparse.Namespace) -> int:
    configs = [load_config(path, split_overrides(options.set)) for path in options.configs]
    cards = [planner.find_card(gpu) for gpu in options.gpu or ["t4"]]
    plans = [planner.make(config, card, options.gpus) for config in configs for card in cards]  # a process of its own
    if options.json:
        print(json.dumps([plan.to_json() for plan in plans], indent=2))
    else:
        print("\n\n\n".join(planner.of_plan(plan) for plan in plans))
        if len(plans) > 1:
            print("\n\n" + planner.of_plans(plans))
    return 0


def _queue(options: argparse.Namespace) -> int:
    runs = entries(Path(options.config), split_overrides(options.set))
    if options.table:
        print(table(runs), verdict(runs), sep="\n")
        return 0
    print(table(runs, measure(runs)), flush=True)
    code = run_queue(runs)
    print(table(runs), verdict(runs), sep="\n")
    return code


def _predict(options: argparse.Namespace) -> int:
    print(ensemble.run(Path(options.archive), Path(options.data), Path(options.out)))
    return 0


if __name__ == "__main__":
    with safe_printing():
        code = main()
        if code == 130:  # a further Ctrl-C would only cut off the exit code
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
    sys.exit(code)
