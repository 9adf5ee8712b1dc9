"""The command line: `python -m lib train CONFIG [--set key=value ...]`, and `python -m lib kaggle ...`."""

import argparse
import importlib
import importlib.util
import sys

from lib import launch, outputs
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
    _add_kaggle(commands)
    return parser


def _add_kaggle(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """A notebook carries lib without `lib.kaggle`, which stays at home."""
    if importlib.util.find_spec("lib.kaggle"):
        importlib.import_module("lib.kaggle.commands").add(commands)


def _train(options: argparse.Namespace) -> int:
    run = launch.prepare(tasks.load_config(options.config, _overrides(options.set)))
    print(run.task.describe_data())
    print(*run.lengths, sep="\n")
    summary = launch.train(run)
    print(f"{summary['reason']} at step {summary['step']:,}: see {run.folder} and {run.output_dir / outputs.ARCHIVE}")
    return launch.EXIT_CODES[summary["reason"]]


def _overrides(pairs: list[str]) -> dict[str, object]:
    for pair in pairs:
        if "=" not in pair:
            raise BadInput(f"--set takes key=value, for example training.max_steps=200; it was given {pair!r}.")
    return dict(pair.split("=", 1) for pair in pairs)


if __name__ == "__main__":
    sys.exit(main())
