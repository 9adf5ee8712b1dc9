"""No credential leaves this machine: what the client prints is cleaned, and what is uploaded is searched."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from lib.errors import BadInput

_NAMES = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$")
_SHORTEST = 8  # a shorter value would be found everywhere; no service hands out one
_CHUNK = 8 * 2**20
# Files whose only purpose is to hold a credential
FILES = ("kaggle.json", "access_token", "access_token.txt", "credentials.json", ".env", ".netrc", ".git-credentials")


def values(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The values of environment variables that are named like a credential, longest first."""
    found = {value for name, value in environment.items() if _NAMES.search(name.upper()) and len(value) >= _SHORTEST}
    return sorted(found, key=len, reverse=True)


def clean(text: str) -> str:
    """The text with every such value replaced."""
    for value in values():
        text = text.replace(value, "[hidden]")
    return text


def refuse_in_text(text: str, what: str) -> None:
    """Raises BadInput where the text holds the value of a credential of the environment."""
    if any(value in text for value in values()):
        raise BadInput(f"{what} contains the value of a credential of your environment. Take it out; nothing was sent.")


def refuse_in_files(paths: Iterable[Path]) -> None:
    """Raises BadInput with the first file that holds such a value, or whose purpose is to hold one."""
    wanted = [value.encode() for value in values()]
    for path in paths:
        if path.name in FILES:
            raise BadInput(f"{path} is a file for credentials. Take it out of the folder; nothing was sent.")
        if wanted and _holds(path, wanted):
            raise BadInput(
                f"{path} contains the value of a credential of your environment. Take it out; nothing was sent."
            )


def _holds(path: Path, wanted: list[bytes]) -> bool:
    overlap, tail = max(map(len, wanted)) - 1, b""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            chunk = tail + chunk
            if any(value in chunk for value in wanted):
                return True
            tail = chunk[-overlap:]
    return False
