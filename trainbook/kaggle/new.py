"""`trainbook new NAME --like KIND`."""

import argparse
from pathlib import Path

_WIDTH = 60  # of a command; a longer one moves its comment


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command `new`."""
    one = commands.add_parser("new", help="write a task of your own with its configuration, test and generated data")
    one.add_argument("name", help="what the files are named by: my for my_task.py, my.yaml, test_my_task.py, my_data")
    one.add_argument("--like", metavar="KIND", default="images", help="the example: images, text, lm or tabular")
    one.set_defaults(run=_new)


def _new(options: argparse.Namespace) -> int:
    from trainbook import new  # not at the top: torch takes seconds to import

    task, config, test, data = new.write(options.name, options.like, Path())
    slug = f"{options.name.strip('_').replace('_', '-').lower()}-data"
    steps = (
        (f"doctor {config}", "asks whether machine, data and task are sound"),
        (f"train {config}", "trains, or resumes"),
        (f"notebook {config}", f"writes {config.with_suffix('.ipynb')}, which trains on Kaggle"),
        (f"kaggle dataset {config} --slug {slug}", "uploads the data"),
        (f"kaggle push {config} --dataset OWNER/{slug}", "trains there"),
    )
    print(f"{task}: the model and how its data is read; change it to yours")
    print(f"{config}: the run, with a reason for each key")
    print(f"{test}: asks whether the task keeps its contract; run it with pytest")
    print(f"{data}: generated data, in the layout that the task reads; put yours in its place")
    print("\nNext:")
    for arguments, what in steps:
        print(f"{f'trainbook {arguments}':{_WIDTH}}  # {what}")
    return 0
