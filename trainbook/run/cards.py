"""The cards of a machine, and commands over several of them. torch is not asked: its import takes seconds."""

import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

from lib.config import environment
from lib.text import amount
from trainbook.run.settings import CARD

_RANK_CODE = re.compile(r"exitcode\s*:\s*(-?\d+)")
_STOPPED = 75  # the exit code of what saved and stopped by itself
_ASKED = -15  # exit code of the other ranks, which torchrun ends by SIGTERM


def visible() -> list[str]:
    """Lists the GPUs that a command may use, as CUDA_VISIBLE_DEVICES names them."""
    count = len(_names())
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None or not count:
        return [str(number) for number in range(count)]
    return [name.strip() for name in chosen.split(",") if name.strip() not in ("", "-1")]


def described() -> str:
    """Returns a line on the machine's GPUs, with the memory that is in use."""
    names = _names()
    if not names:
        return "There is no GPU."
    return f"{len(names)} GPUs: {', '.join(names)}." if len(names) > 1 else f"One GPU: {names[0]}."


def _names() -> list[str]:
    try:
        import pynvml

        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        return [_described(pynvml, number) for number in range(count)]
    except Exception:  # no package, no driver; errors of many classes
        return []


def _described(nvml: Any, number: int) -> str:
    handle = nvml.nvmlDeviceGetHandleByIndex(number)
    name = nvml.nvmlDeviceGetName(handle)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return f"{name}, {amount(memory.used)} of {amount(memory.total)} in use"


def placed(command: Iterable[str]) -> list[str]:
    """Returns a command with the number of its card for {card}."""
    card = os.environ.get(environment.CARD, "0")
    return [word.replace(CARD, card) for word in command]


def environment_of(card: int, command: Iterable[str]) -> dict[str, str]:
    """Returns the variables by which a command gets its card.

    One that names {card} sees all cards; any other sees its own alone.
    """
    variables = {environment.CARD: str(card)}
    names = visible()
    if names and not any(CARD in word for word in command):
        variables["CUDA_VISIBLE_DEVICES"] = names[card]
    return variables


def under_torchrun(command: Sequence[str], processes: int) -> list[str]:
    """Returns a Python command as torchrun starts it, in a process for each card; prints a deviation."""
    count = len(visible())
    if not count:
        print(f"There is no GPU: torchrun starts {processes} processes on the CPU.")
    elif count < processes:
        print(f"There are {count} GPUs: torchrun starts {count} processes instead of {processes}.")
        processes = count  # NCCL takes one process a card
    program, *words = command
    flags = 0  # of Python, before the program
    while flags < len(words) and words[flags].startswith("-") and words[flags] != "-m":
        flags += 1
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    return [program, *words[:flags], *launcher, *words[flags:]]


def rank_codes(line: str) -> set[int]:
    """Returns the exit code of a rank in a line of torchrun's report."""
    return {int(code) for code in _RANK_CODE.findall(line)}


def stopped_themselves(codes: set[int]) -> bool:
    """Returns whether ranks saved and stopped, as `Keep` has them do; torchrun ends with 1 then."""
    return _STOPPED in codes and codes <= {_STOPPED, _ASKED}
