"""The command line: `python -m lib train CONFIG [--set key=value ...]`."""

import argparse
import sys
from pathlib import Path

from lib import launch, outputs, prediction
from lib import queue as queues
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
    return parser


def _train(options: argparse.Namespace) -> int:
    run = launch.prepare(tasks.load_config(options.config, _overrides(options.set)))
    print(run.task.describe_data())
    print(*run.lengths, sep="\n")
    summary = launch.train(run)
    print(f"{summary['reason']} at step {summary['step']:,}: see {run.folder} and {run.output_dir / outputs.ARCHIVE}")
    return launch.EXIT_CODES[summary["reason"]]


def _queue(options: argparse.Namespace) -> int:
    found = queues.entries(Path(options.config), _overrides(options.set))
    if options.table:
        print(queues.table(found), queues.verdict(found), sep="\n")
        return 0
    print(queues.table(found, queues.measure(found)), flush=True)
    code = queues.run(found)
    print(queues.table(found), queues.verdict(found), sep="\n")
    return code


def _predict(options: argparse.Namespace) -> int:
    print(prediction.run(Path(options.archive), Path(options.data), Path(options.out)))
    return 0


def _overrides(pairs: list[str]) -> dict[str, object]:
    for pair in pairs:
        if "=" not in pair:
            raise BadInput(f"--set takes key=value, for example training.max_steps=200; it was given {pair!r}.")
    return dict(pair.split("=", 1) for pair in pairs)


if __name__ == "__main__":
    sys.exit(main())
