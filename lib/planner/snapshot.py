"""The log of a trace as a snapshot of PyTorch's memory, which pytorch.org/memory_viz and torch.cuda._memory_viz read.

The form is that of torch.cuda.memory._snapshot(). The viewer's own reader of pickles knows protocols 2 to 4 alone.
"""

import pickle
from pathlib import Path
from typing import Any

from lib.machine import disk
from lib.planner.log import Log, Storage

_PROTOCOL = 4
_STREAM, _POOL = 0, (0, 0)


def write(log: Log, path: Path) -> Path:
    """Writes the snapshot as a pickle, whole or not at all; returns `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with disk.whole(path) as aside:
        aside.write_bytes(pickle.dumps(of_log(log), protocol=_PROTOCOL))
    return path


def of_log(log: Log) -> dict[str, Any]:
    """Returns every allocation of a trace in order, and the segments as they are at its end."""
    trace: list[dict[str, Any]] = []
    alive: dict[int, Storage] = {}
    segments: dict[int, int] = {}
    frames: dict[tuple, list[dict[str, Any]]] = {}  # one list for all that are alike, which a pickle holds once
    for action, what, _ in log.events:
        if action in ("segment_alloc", "segment_free"):
            address, size = what
            segments.pop(address) if action == "segment_free" else segments.__setitem__(address, size)
            trace.append(_event(action, address, size, [], len(trace)))
        elif isinstance(what, Storage) and what.size:
            if action == "alloc":
                alive[what.address] = what
            else:
                del alive[what.address]
            said = frames.setdefault((what.module, what.what, what.category, what.line), _frames(what))
            actions = ["alloc"] if action == "alloc" else ["free_requested", "free_completed"]
            trace += [_event(each, what.address, what.size, said, len(trace)) for each in actions]
    return {
        "device_traces": [trace],
        "segments": [_segment(address, size, alive, frames) for address, size in sorted(segments.items())],
    }


def _event(action: str, address: int, size: int, frames: list[dict[str, Any]], time: int) -> dict[str, Any]:
    """`time` counts events: a trace has no time."""
    return {
        "action": action, "addr": address, "size": size, "stream": _STREAM, "frames": frames, "time_us": time,
        "pool_id": _POOL,
    }  # fmt: skip


def _frames(storage: Storage) -> list[dict[str, Any]]:
    """Returns the layer with its operator, and the line of code that called it, as a stack of calls."""
    file, number, function = storage.line or ("", 0, "")
    named = f"{storage.module or '(outside of layers)'} {storage.what}".strip()
    frames = [{"name": f"{named} [{storage.category}]", "filename": storage.module, "line": 0}]
    return [*frames, {"name": function, "filename": file, "line": number}] if file else frames


def _segment(address: int, size: int, alive: dict[int, Storage], frames: dict[tuple, Any]) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    at = address
    for place in sorted(place for place in alive if address <= place < address + size):
        storage = alive[place]
        said = frames[storage.module, storage.what, storage.category, storage.line]
        blocks += [_free(at, place - at)] if place > at else []
        blocks.append({
            "address": place, "size": storage.size, "requested_size": storage.size, "state": "active_allocated",
            "frames": said,
        })  # fmt: skip
        at = place + storage.size
    blocks += [_free(at, address + size - at)] if at < address + size else []
    used = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
    return {
        "device": 0, "address": address, "total_size": size, "allocated_size": used, "active_size": used,
        "requested_size": used, "stream": _STREAM, "segment_type": "small" if size <= 2 * 2**20 else "large",
        "segment_pool_id": _POOL, "is_expandable": False, "frames": [], "blocks": blocks,
    }  # fmt: skip


def _free(address: int, size: int) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": 0, "state": "inactive", "frames": []}
