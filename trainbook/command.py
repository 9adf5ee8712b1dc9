"""Ends commands with their exit codes, and has `train`: `python -m trainbook.command` in ranks and notebooks.

Modules that import torch, which takes seconds, are imported by the functions that need them.
"""

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from lib.errors import BadInput, TrainingFailed
from trainbook import dependencies

try:
    from lib.config import environment, split_overrides, with_changes
    from lib.machine import disk
    from lib.report.printing import safe_printing
    from trainbook.outputs import packing
except ModuleNotFoundError as error:
    sys.exit(dependencies.how_to_get(error))


def end(main: Callable[[], int]) -> NoReturn:
    """Runs the main function of a command line, and ends this process with its exit code."""
    with safe_printing():
        code = main()
        if code == 130:  # a further Ctrl-C would only cut off the exit code
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def exit_code(run: Callable[[], int]) -> int:
    """Runs a command; returns its exit code: 0 completed, 75 deadline, 130 interrupted, 2 bad input, 1 failure.

    Under torchrun a rank returns 0 after every clean stop.
    """
    is_rank = bool({"RANK", environment.RANK_FOLDER} & os.environ.keys())
    try:
        with contextlib.ExitStack() as stack:
            if is_rank:
                from trainbook.launch import several

                stack.enter_context(several.as_rank())
            return run()
    except (BadInput, TrainingFailed) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, BadInput) else 1
    except ModuleNotFoundError as error:
        print(dependencies.how_to_get(error), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if not is_rank:
            print(
                "Interrupted. Run the same command again: a training resumes where it last saved.",
                file=sys.stderr,
            )
        return 130
    except OSError as error:
        if error.errno not in disk.TROUBLES:
            raise  # a mistake in a task is best explained by its own traceback
        path = f" at {error.filename}" if error.filename else ""
        print(
            f"The disk refused{path}: {error.strerror}. Free some space on it, or repair it, and run"
            " again.",
            file=sys.stderr,
        )
        return 1


def add_train(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `train`."""
    parser = commands.add_parser("train", help="train a configuration or its queue, or resume it")
    parser.add_argument("config", help="a YAML file such as configs/graphmer_small.yaml")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a dotted key"
    )
    parser.add_argument(
        "--finish",
        action="store_true",
        help="end a run of scheduler wsd: NAME-finish goes on from its step, and the rate falls",
    )
    parser.set_defaults(run=train)


def train(options: argparse.Namespace) -> int:
    """Trains a configuration, or the runs of its queue."""
    from lib import ranks
    from lib.task import load_config
    from trainbook import launch
    from trainbook.launch.run import has_queue

    config = load_config(options.config, split_overrides(options.set))
    if options.finish:
        name = config.run.name
        config = with_changes(config, {"run.name": f"{name}-finish", "run.finishes": name})
    is_rank = ranks.is_watched()  # then the process above prints
    if has_queue(Path(options.config), config) and not is_rank:
        if options.finish:
            raise BadInput(
                f"--finish is for one run, and {options.config} has a queue. Give the config.yaml in the folder of one."
            )
        return train_queue(options)
    run = launch.prepare(config)
    if not is_rank:
        print(run.task.describe_data(), *run.lengths, sep="\n")
    summary = launch.train(run)
    if not is_rank:
        archive = run.output_dir / packing.ARCHIVE
        results = f"{run.folder}"
        if archive.is_file():
            results = f"{run.folder} and {archive}"
        lacking = f", without its {', '.join(summary.missing)}" if summary.missing else ""
        print(f"{summary.reason} at step {summary.step:,}{lacking}: see {results}")
    ranks.end()
    if ranks.under_torchrun():
        return 0
    return launch.EXIT_CODES[summary.reason]


def train_queue(options: argparse.Namespace) -> int:
    """Trains all runs of a configuration's queue. Raises BadInput under torchrun."""
    from lib import ranks
    from trainbook.launch import queue

    if ranks.under_torchrun():
        raise BadInput(
            f"{options.config} has a queue of runs. Start it without torchrun: each run takes all GPUs."
        )
    runs = queue.entries(Path(options.config), split_overrides(options.set))
    print("The queue:", ", ".join(entry.name for entry in runs))
    print(queue.table(runs, queue.measure(runs)), flush=True)
    code = queue.run_queue(runs)
    print(queue.table(runs), queue.verdict(runs), sep="\n")
    queue.conclude(runs, lambda text: print(f"\n{text}"))
    return code


def main() -> int:
    """Runs `python -m trainbook.command train CONFIG`; users type `trainbook train CONFIG`."""
    parser = argparse.ArgumentParser(prog="python -m trainbook.command")
    add_train(parser.add_subparsers(required=True, metavar="command"))
    options = parser.parse_args()
    return exit_code(lambda: options.run(options))


if __name__ == "__main__":
    end(main)
