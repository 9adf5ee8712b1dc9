"""Addresses that a run downloads from: in its configuration, and their sizes without a download."""

import dataclasses
import http.client
import json
import re
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from lib.config import Config
from lib.report.findings import Finding
from lib.task import find_task, locate_data

_SECONDS = 10  # that an address may take to answer
ADDRESS = re.compile(r"https?://\S+")


def remote(config: Config) -> list[str]:
    """Returns the addresses among the values of a configuration; none if `data.dir` or a mounted input has the data."""
    task = find_task(config.task)
    if config.data.dir or locate_data("", task.sentinels):
        return []
    return re.findall(r'"(https?://[^\s"]+)"', json.dumps(dataclasses.asdict(config), default=str))


def check_addresses(addresses: Sequence[str]) -> list[Finding]:
    """Checks several at once."""
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(check_address, addresses))


def check_address(address: str, seconds: float = _SECONDS) -> Finding:
    """Checks whether an address answers within some seconds; of the answer only its head is read."""
    shown = re.sub(r"(?<=//)[^/@]*@|[?#].*", "", address)  # user, password and query may hold a credential
    try:
        request = urllib.request.Request(address, headers={"User-Agent": "trainbook"})
        with urllib.request.urlopen(request, timeout=seconds) as response:
            size = response.headers.get("Content-Length")
        return Finding("download", f"{shown} answers" + (f", {int(size):,} bytes" if size else ""))
    except urllib.error.HTTPError as error:
        value = f"{shown} answers {error.code} {error.reason}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        value = f"{shown} does not answer in {seconds:g} s ({getattr(error, 'reason', error)})"
    return Finding("download", value, "bad", "Correct it, or mount the data instead.")
