"""Keeps credentials on this machine: what the client prints is cleaned, and what is uploaded is searched."""

import mmap
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from lib.errors import BadInput

_NAMES = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|_PAT)$")
_IN_ADDRESS = re.compile(r"://[^/\s:@]*:([^/\s@]+)@")  # https://user:password@host, of whatever name
_SHORTEST = 8  # a shorter value would be found everywhere; no service hands out one
# Files whose only purpose is to hold a credential
FILES = ("kaggle.json", "access_token", "access_token.txt", "credentials.json", ".env", ".netrc", ".git-credentials")


def values(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the credentials of environment variables: by their names, and in addresses; longest first."""
    secrets = {value for name, value in environment.items() if _NAMES.search(name.upper())}
    secrets |= {match[1] for value in environment.values() if (match := _IN_ADDRESS.search(value))}
    return sorted((secret for secret in secrets if len(secret) >= _SHORTEST), key=len, reverse=True)


def clean(text: str) -> str:
    """Returns the text with [hidden] in the place of every such value."""
    for value in values():
        text = text.replace(value, "[hidden]")
    return text


def refuse(where: object, content: bytes | mmap.mmap) -> None:
    """Raises BadInput where the content holds the value of a credential of the environment."""
    if any(content.find(value.encode()) >= 0 for value in values()):
        raise BadInput(f"{where} contains the value of a credential of your environment. Remove it; nothing was sent.")


def refuse_in_files(paths: Iterable[Path]) -> None:
    """Raises BadInput for the first file that holds such a value, or whose purpose is to hold one."""
    for path in paths:
        if path.name in FILES:
            raise BadInput(f"{path} is a file for credentials. Remove it from the folder; nothing was sent.")
        if path.stat().st_size:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                refuse(path, content)
