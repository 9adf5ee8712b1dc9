"""Unpacks untrusted archives: known names, plain files, bounded sizes, weights as hashed."""

import re
import shutil
from pathlib import Path

from lib import checkpoint, untrusted
from lib.report import outputs

# In a run's folder, at the top or one below it.
_WANTED = re.compile(
    r"([^/]{1,200}/)?(config\.yaml|summary\.json"
    r"|named/[\w.]{1,100}/\w[\w. -]{0,100}"  # small files that settings of a task name
    r"|data/\w[\w.-]{0,100}"  # files of what a task learned
    r"|(best|frozen)/step-[0-9]{8,18}/(manifest\.json|state\.json|[a-z_]{1,40}\.safetensors))"
)
_CODE = re.compile(r"([^/]{1,200}/)?code/([\w-]{1,100}/){0,8}[\w. -]{1,100}\.py")  # a task's own files
_MOST_MEMBERS = 20_000
_MOST_RATIO = 100  # weights hardly shrink; text shrinks to a tenth
_CHUNK = 2**20


def unpack(archive: Path, folder: Path, with_code: bool = False) -> None:
    """Writes configurations, summaries, weights and stored data of an archive's runs into a folder, and no more.

    Links, devices and other names stay packed; `with_code` takes a trusted archive's tasks too. Raises BadInput.
    """
    with outputs.opened(archive, ratio=_MOST_RATIO) as packed:
        for number, member in enumerate(packed, 1):
            if number > _MOST_MEMBERS:
                raise outputs.TooMuch(f"it has more than {_MOST_MEMBERS:,} members")
            name = member.name.removeprefix("./")
            is_wanted = _WANTED.fullmatch(name) or (with_code and _CODE.fullmatch(name))
            is_plain = member.isreg() and not member.issparse() and all(map(untrusted.is_name, name.split("/")))
            if is_wanted and is_plain:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                with (folder / name).open("xb") as file:
                    shutil.copyfileobj(packed.extractfile(member), file, _CHUNK)  # type: ignore[type-var]


def damaged(run: Path) -> str:
    """Returns which weights or checkpoint in a run's folder do not match their manifest, and why; "" for none."""
    for manifest in sorted(run.glob("*/step-*/manifest.json")):
        try:
            checkpoint.verify(manifest.parent)
        except checkpoint.DamagedCheckpoint as damage:
            return f"{manifest.parent.name} is damaged: {damage}"
    return ""
