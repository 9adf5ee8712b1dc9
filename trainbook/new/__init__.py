"""`trainbook new NAME --like KIND`: the files of a task of one's own, with data on which it trains at once."""

import argparse
from pathlib import Path

from lib.errors import BadInput

KINDS = ("images", "segmentation", "tabular", "text", "tokens", "chat")
_EXAMPLES = Path(__file__).with_name("examples")


def run(options: argparse.Namespace) -> int:
    task, config, test, data = write(options.name, options.like, Path())
    slug = f"{options.name.strip('_').replace('_', '-').lower()}-data"
    upload = f"kaggle dataset {config} --slug {slug}"
    push = f"kaggle push {config} --dataset OWNER/{slug}"
    print(f"{task}: the model and how its data is read; change it to yours")
    print(f"{config}: the run, with a reason for each key")
    print(
        f"{test}: checks the task, as doctor does: python {test}, or with pytest (pip install pytest)"
    )
    print(
        f"{data}: generated data, in the layout that the task reads; put yours in its place\n\nNext:"
    )
    print(
        *(f"trainbook {each}" for each in (f"doctor {config}", f"train {config}", upload, push)),
        sep="\n",
    )
    return 0


def write(name: str, kind: str, folder: Path) -> list[Path]:
    if not (name.isascii() and name.isidentifier()):
        raise BadInput(
            f"{name!r} cannot be the name of a Python file. Write letters, digits and underscores."
        )
    task = f"{name}_task.py"
    config = f"{name}.yaml"
    test = f"test_{name}_task.py"
    data = f"{name}_data"
    paths = [folder / file for file in (task, config, test, data)]
    if existing := ", ".join(str(path) for path in paths if path.exists()):
        raise BadInput(f"{existing}: there already, and nothing is overwritten. Take another name.")
    keys = _EXAMPLES.joinpath(f"{kind}.yaml").read_text("utf-8")
    keys = keys.replace(f"task: {kind}.py:", f"task: {task}:").replace(
        f"dir: {kind} ", f"dir: {data} "
    )
    keys = keys.replace(f"base: {kind}/", f"base: {data}/")
    code, check = (
        _EXAMPLES.joinpath(file).read_text("utf-8") for file in (f"{kind}.py", "test.py.in")
    )
    for path, text in zip(paths, (code, keys, check.replace("@NAME@", name)), strict=False):
        path.write_text(text, "utf-8")
    from trainbook.new import made  # not at the top: the command's help does not wait for NumPy

    getattr(made, kind)(paths[-1])
    return paths
