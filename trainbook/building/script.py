"""A notebook around somebody else's command, whose repository a data set brings. No notebook carries this."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import trainbook
from trainbook.building import carrier
from trainbook.building.source import build, libraries, read_source
from trainbook.run.settings import Settings, as_yaml

TEMPLATE = Path(__file__).resolve().with_name("script.py.in")


@dataclass(frozen=True)
class Script:
    """What such a notebook is built from."""

    path: Path  # of the settings
    settings: Settings
    dataset: str  # owner/slug
    files: Mapping[str, str]  # hashes by the names in the data set
    inside: str  # the command's folder in the repository


def text(script: Script) -> str:
    """Returns the text of the notebook."""
    source = read_source(TEMPLATE)
    values = {
        '"@FILES@"': json.dumps(dict(script.files), indent=4),
        "@TITLE@": script.settings.name,
        "@COMMAND@": shlex.join(script.settings.command).replace("`", "'"),
        "@DATASET@": script.dataset,
        "@FILE@": script.path.name,
        "@INSIDE@": script.inside,
    }
    for cell in source.cells:
        for placeholder, value in values.items():
            cell.source = cell.source.replace(placeholder, value)
    codes = [cell.source for cell in source.cells if cell.cell_type == "code"]
    files = carrier.carried_files(script.path, [], [], False, codes, trainbook.HOME)
    files[f"configs/{script.path.name}"] = as_yaml(script.settings)
    named = replace(source, path=Path(f"{script.path.stem}.py"))
    commit = carrier.commit_of(trainbook.HOME)
    notebook = build(named, files, made_from=script.path.name, commit=commit)
    _, nbformat = libraries()
    return nbformat.writes(notebook).rstrip("\n") + "\n"
