"""Addresses that a run downloads from: found in its configuration, and asked for their size without a download."""

import dataclasses
import http.client
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lib.config import Config
from lib.doctor.findings import Finding
from lib.task import find_task, locate_data

_SECONDS = 10  # that an address may take to answer
ADDRESS = re.compile(r"https?://\S+")


def remote(config: Config) -> list[str]:
    """Returns the addresses among the values of a configuration; none where the data is there.

    It is there where `data.dir` names it, and where a mounted input has it.
    """
    task = find_task(config.task)
    if config.data.dir or locate_data("", task.sentinels, task.homes):
        return []
    return [text for text in _texts(dataclasses.asdict(config)) if ADDRESS.fullmatch(text)]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def shown(address: str) -> str:
    """Returns an address without user, password and query, which may hold a credential."""
    return re.sub(r"(?<=//)[^/@]*@|[?#].*", "", address)


def check_addresses(addresses: Sequence[str]) -> list[Finding]:
    """Checks several at once."""
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(check_address, addresses))


def check_address(address: str, seconds: float = _SECONDS) -> Finding:
    """Checks whether an address answers a HEAD request (or a GET, where HEAD is not allowed) within some seconds."""
    for method in ("HEAD", "GET"):
        try:
            request = urllib.request.Request(address, method=method, headers={"User-Agent": "trainbook"})
            with urllib.request.urlopen(request, timeout=seconds) as response:
                size = response.headers.get("Content-Length")
                return Finding("download", f"{shown(address)} answers" + (f", {int(size):,} bytes" if size else ""))
        except urllib.error.HTTPError as error:
            if method == "GET" or error.code not in (403, 405, 501):
                value = f"{shown(address)} answers {error.code} {error.reason}"
                return Finding("download", value, "bad", "Correct it, or mount the data instead.")
        except (OSError, ValueError, http.client.HTTPException) as error:
            value = f"{shown(address)} does not answer in {seconds:g} s ({getattr(error, 'reason', error)})"
            return Finding("download", value, "bad", "Try it in a browser; mount the data instead.")
    raise AssertionError("unreachable")
