"""`trainbook new NAME --like KIND`: the files of a task of one's own, with data on which it trains at once."""

import argparse
import importlib
from pathlib import Path

from lib.errors import BadInput

_EXAMPLES = Path(__file__).with_name("examples")
KINDS = tuple(sorted(path.stem for path in _EXAMPLES.glob("*.yaml")))


def run(options: argparse.Namespace) -> int:
    if options.like == "competition":
        return _competition(options.name, options.data)
    if options.data:
        raise BadInput(
            "--data is for --like competition. Another example reads the folder that data.dir names."
        )
    task, config, test, data = write(options.name, options.like, Path())
    slug = f"{options.name.strip('_').replace('_', '-').lower()}-data"
    print(f"{task}: the model and how its data is read; change it to yours")
    print(f"{config}: the run, with a reason for each key")
    print(
        f"{test}: checks the task, as doctor does: python {test}, or with pytest (pip install pytest)"
    )
    print(f"{data}: generated data, in the layout that the task reads; put yours in its place")
    print("\nNext:")
    print(f"trainbook doctor {config}")
    print(f"trainbook train {config}")
    print(f"trainbook kaggle dataset {config} --slug {slug}")
    print(f"trainbook kaggle push {config} --dataset OWNER/{slug}")
    return 0


def _competition(name: str, data: str) -> int:
    """Writes the configuration of a competition, and prints why each setting is as it is. Raises BadInput."""
    if not data or not Path(data).is_dir():
        raise BadInput(
            f"There is no folder {data!r}. Give the folder of the competition's files as --data FOLDER."
        )
    config = Path(f"{_checked(name)}.yaml")
    if config.exists():
        raise BadInput(f"{config}: there already, and nothing is overwritten. Take another name.")
    proposal = importlib.import_module(
        "workloads.competition.proposal"
    )  # workloads are loaded by name
    block = proposal.propose(Path(data))
    text = proposal.text(Path(data), data, block)
    config.write_text(text, "utf-8")
    print(text)
    print(*block.questions, sep="\n")
    print(f"\n{config} has the block above. Correct it, then:")
    print(f"trainbook doctor {config}")
    print(f"trainbook train {config}    # ends with a submission")
    return 0


def _checked(name: str) -> str:
    """Returns a name of files. Raises BadInput if a Python file cannot have it."""
    if not (name.isascii() and name.isidentifier()):
        raise BadInput(
            f"{name!r} cannot be the name of a Python file. Write letters, digits and underscores."
        )
    return name


def write(name: str, kind: str, folder: Path) -> list[Path]:
    task = folder / f"{_checked(name)}_task.py"
    config = folder / f"{name}.yaml"
    test = folder / f"test_{name}_task.py"
    data = folder / f"{name}_data"
    paths = [task, config, test, data]
    existing = ", ".join(str(path) for path in paths if path.exists())
    if existing:
        raise BadInput(f"{existing}: there already, and nothing is overwritten. Take another name.")
    keys = _example(f"{kind}.yaml")
    keys = keys.replace(f"task: {kind}.py:", f"task: {task.name}:")
    keys = keys.replace(f"dir: {kind} ", f"dir: {data.name} ")
    keys = keys.replace(f"base: {kind}/", f"base: {data.name}/")
    task.write_text(_example(f"{kind}.py"), "utf-8")
    config.write_text(keys, "utf-8")
    test.write_text(_example("test.py.in").replace("@NAME@", name), "utf-8")
    from trainbook.new import made  # not at the top: the command's help does not wait for NumPy

    getattr(made, kind)(data)
    return paths


def _example(file: str) -> str:
    return _EXAMPLES.joinpath(file).read_text("utf-8")
