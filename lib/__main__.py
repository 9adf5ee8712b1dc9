"""The command line: `python -m lib train CONFIG [--set key=value ...]`."""

import argparse
import sys

from lib import launch, outputs, ranks, torchrun
from lib import task as tasks
from lib.errors import BadInput
from lib.trainer import TrainingFailed


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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lib", description="Trainbook's command line.")
    commands = parser.add_subparsers(required=True, metavar="command")
    train = commands.add_parser("train", help="train a configuration, or go on with its run")
    train.add_argument("config", help="a YAML file such as configs/graphmer_small.yaml")
    train.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a dotted key")
    train.set_defaults(run=_train)
    return parser


def _train(options: argparse.Namespace) -> int:
    run = launch.prepare(tasks.load_config(options.config, _overrides(options.set)))
    if not torchrun.is_watched():  # else the process above has said it
        print(run.task.describe_data())
        print(*run.lengths, sep="\n")
    summary = launch.train(run)
    if not torchrun.is_watched():
        where = f"{run.folder} and {run.output_dir / outputs.ARCHIVE}"
        print(f"{summary['reason']} at step {summary['step']:,}: see {where}")
    code = launch.EXIT_CODES[summary["reason"]]
    if ranks.under_torchrun():  # for which any other code is a failure; the summary says why it stopped
        code = 0
    ranks.end()
    return code


def _overrides(pairs: list[str]) -> dict[str, object]:
    for pair in pairs:
        if "=" not in pair:
            raise BadInput(f"--set takes key=value, for example training.max_steps=200; it was given {pair!r}.")
    return dict(pair.split("=", 1) for pair in pairs)


if __name__ == "__main__":
    sys.exit(main())
