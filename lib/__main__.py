"""The command line: `python -m lib train CONFIG [--set key=value ...]`, `plan CONFIG --gpu t4`, `doctor [CONFIG]`, and
`kaggle dataset|push|status|fetch|chain|preflight`."""

import argparse
import contextlib
import importlib
import importlib.util
import json
import sys

from lib import doctor, launch, outputs, planner, rehearsal
from lib import task as tasks
from lib.errors import BadInput
from lib.trainer import TrainingFailed


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns its exit code: 0 completed, 75 deadline, 130 interrupted, 2 bad input, 1 failure."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except BadInput as error:
        print(error, file=sys.stderr)
        return 2
    except TrainingFailed as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lib", description="Trainbook's command line.")
    commands = parser.add_subparsers(required=True, metavar="command")
    train = commands.add_parser("train", help="train a configuration, or go on with its run")
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
    checks = commands.add_parser("doctor", help="look at the machine, and with a configuration at its run")
    checks.add_argument("config", nargs="?", help="a YAML file; without one, the machine alone")
    checks.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a dotted key")
    checks.add_argument("--json", action="store_true", help="print the findings as JSON")
    checks.set_defaults(run=_doctor)
    _add_kaggle(commands)
    return parser


def _add_kaggle(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """A notebook carries lib without `lib.kaggle`, which stays at home."""
    if importlib.util.find_spec("lib.kaggle"):
        importlib.import_module("lib.kaggle.commands").add(commands)


def _doctor(options: argparse.Namespace) -> int:
    """Exit code 2 where a finding is bad, else 0."""
    with contextlib.redirect_stdout(sys.stderr):  # what data says while it is read must not get into the JSON
        config = tasks.load_config(options.config, _overrides(options.set)) if options.config else None
        sections = doctor.examine(config)
        if config:
            sections["Run"] = rehearsal.check_run(config)
    print(doctor.as_json(sections) if options.json else doctor.table(sections))
    return doctor.exit_code(sections)


def _train(options: argparse.Namespace) -> int:
    run = launch.prepare(tasks.load_config(options.config, _overrides(options.set)))
    print(run.task.describe_data())
    print(*run.lengths, sep="\n")
    summary = launch.train(run)
    print(f"{summary['reason']} at step {summary['step']:,}: see {run.folder} and {run.output_dir / outputs.ARCHIVE}")
    return launch.EXIT_CODES[summary["reason"]]


def _plan(options: argparse.Namespace) -> int:
    configs = [tasks.load_config(path, _overrides(options.set)) for path in options.configs]
    plans = [planner.plan(config, gpu, options.gpus) for config in configs for gpu in options.gpu or ["t4"]]
    if options.json:
        print(json.dumps([plan.to_json() for plan in plans], indent=2))
    else:
        print("\n\n\n".join(planner.of_plan(plan) for plan in plans))
        if len(plans) > 1:
            print("\n\n" + planner.of_plans(plans))
    return 0


def _overrides(pairs: list[str]) -> dict[str, object]:
    for pair in pairs:
        if "=" not in pair:
            raise BadInput(f"--set takes key=value, for example training.max_steps=200; it was given {pair!r}.")
    return dict(pair.split("=", 1) for pair in pairs)


if __name__ == "__main__":
    sys.exit(main())
