"""Loss of power: after each operation, every subset of what was not yet synced may be missing.

An entry of a folder (something made, renamed or removed) is certain once its folder was synced after it, the bytes of a
file once the file was. Before that an entry may or may not be there, and a file may be empty, cut, zeroed or whole.
"""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import torch

from lib import checkpoint
from lib.checkpoint.saver import Retention
from lib.config import Checkpoint
from lib.machine import disk
from lib.machine.disk import Disk

OPERATIONS = ("mkdir", "create", "write", "sync", "sync_folder", "rename", "remove")
Tree = dict  # name -> Tree or bytes


class Recorder(Disk):
    """Notes every operation with its paths and data, and lets it happen."""

    def __init__(self):
        self.log: list[tuple] = []
        for name in OPERATIONS:
            setattr(self, name, self._noted(name, getattr(super(), name)))

    def _noted(self, name, original):
        def run(*arguments):
            if name == "write":
                _, data, path = arguments
                self.log.append((name, path, bytes(data)))
            else:
                self.log.append(
                    (name, *(each for each in arguments if not isinstance(each, int)))
                )  # without handles
            return original(*arguments)

        return run


class Node:
    """A file or a folder on the simulated disk; `entries` are certain, `pending` are not yet."""

    def __init__(self, folder: bool):
        self.folder = folder
        self.entries: dict[str, Node] = {}
        self.pending: list[tuple] = []
        self.now: dict[str, Node] = {}
        self.data = b""
        self.synced = True


class Volume:
    """Applies the operations of a log to nodes below `root`, which exists and is certain."""

    def __init__(self, root: Path, honours_sync: bool = True):
        self.root, self.top, self.honours_sync = root, Node(True), honours_sync

    def node(self, path: Path) -> Node:
        node = self.top
        for part in path.relative_to(self.root).parts:
            node = node.now[part]
        return node

    def apply(self, operation: str, path: Path, *rest) -> None:
        if operation in ("mkdir", "create"):
            node = Node(operation == "mkdir")
            node.synced = node.folder
            self._change(path.parent, ("link", path.name, node))
        elif operation == "write":
            node = self.node(path)
            node.data = node.data + rest[0]
            node.synced = False
        elif operation == "sync":
            self.node(path).synced = self.honours_sync
        elif operation == "sync_folder":
            self._sync_folder(path)
        elif operation == "rename":
            self._change(path.parent, ("move", path.name, self.node(path), rest[0].name))
        elif operation == "remove":
            self._change(path.parent, ("unlink", path.name))

    def _change(self, folder: Path, change: tuple) -> None:
        node = self.node(folder)
        node.pending.append(change)
        node.now = _with(node.now, [change])

    def _sync_folder(self, path: Path) -> None:
        if path == self.root.parent:
            return
        node = self.node(path)
        node.entries = dict(node.now)
        node.pending = []

    def states(self, draw: random.Random, limit: int) -> Iterator[Tree]:
        """Up to `limit` trees that the disk may hold after the power is back, both extremes among them."""
        folders = []
        torn = []
        _walk(self.top, folders, torn)
        pending = [(folder, change) for folder in folders for change in folder.pending]
        choices = [(False, True)] * len(pending) + [("empty", "cut", "zeroed", "whole")] * len(torn)
        total = 1
        for options in choices:
            total *= len(options)
        if total <= limit:
            picks = itertools.product(*choices)
        else:
            extremes = [tuple(options[i] for options in choices) for i in (0, -1)]
            picks = [*extremes, *(tuple(draw.choice(o) for o in choices) for _ in range(limit - 2))]
        for pick in picks:
            done: dict[int, list[tuple]] = {}
            for (folder, change), happened in zip(pending, pick[: len(pending)], strict=True):
                if happened:
                    done.setdefault(id(folder), []).append(change)
            yield _tree(self.top, done, dict(zip(map(id, torn), pick[len(pending) :], strict=True)))


def _walk(node: Node, folders: list[Node], torn: list[Node]) -> None:
    """All folders with uncertain entries and all files with uncertain bytes that may be reached."""
    if not node.folder:
        if not node.synced and node not in torn:
            torn.append(node)
        return
    if node in folders:
        return
    folders.append(node)
    reachable = [*node.entries.values(), *(change[2] for change in node.pending if len(change) > 2)]
    for child in reachable:
        _walk(child, folders, torn)


def _with(entries: dict[str, Node], changes: list[tuple]) -> dict[str, Node]:
    """The entries after changes; one that cannot happen, because what it needs was lost, does not."""
    entries = dict(entries)
    for change in changes:
        kind = change[0]
        name = change[1]
        if kind == "link":
            entries[name] = change[2]
        elif kind == "unlink":
            entries.pop(name, None)
        elif change[3] not in entries:
            entries.pop(name, None)
            entries[change[3]] = change[2]
    return entries


def _tree(node: Node, done: dict[int, list[tuple]], contents: dict[int, str]) -> Tree | bytes:
    if node.folder:
        entries = _with(node.entries, done.get(id(node), []))
        return {name: _tree(child, done, contents) for name, child in entries.items()}
    data = node.data
    kind = contents.get(id(node), "whole")
    return {"empty": b"", "cut": data[: len(data) // 2], "zeroed": bytes(len(data)), "whole": data}[
        kind
    ]


def put(tree: Tree, folder: Path) -> None:
    """Writes a tree to the real disk."""
    folder.mkdir()
    for name, child in tree.items():
        put(child, folder / name) if isinstance(child, dict) else (folder / name).write_bytes(child)


def frozen(tree: Tree | bytes) -> object:
    if isinstance(tree, bytes):
        return tree
    return frozenset((name, frozen(child)) for name, child in tree.items())


def history(root: Path) -> list[tuple]:
    """The operations of five saves with retention, the last two of the same step; a save's return is in it too."""
    recorder = Recorder()
    before = disk.calls
    disk.calls = recorder
    try:
        folder = root / "run"
        keeper = Retention(folder, Checkpoint(keep_last=2))
        for step, value in ((1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (4, 4.5)):
            recorder.log.append(("begin", step, value))
            tensors = {
                "model": {"w": torch.full((3,), value)},
                "optimizer": {"m": torch.full((2,), value)},
            }
            checkpoint.save(folder / "checkpoints", step, tensors, {"value": value})
            recorder.log.append(("committed", step, value))
            keeper.after_checkpoint(step, [])
        return recorder.log
    finally:
        disk.calls = before


def power_losses(
    base: Path, limit: int = 64, seed: int = 0, honours_sync: bool = True
) -> dict[str, int]:
    """Counts the distinct states, those that load something wrong and those that lose what was committed."""
    root = base / "disk"
    draw = random.Random(seed)
    root.mkdir(parents=True)
    volume = Volume(root, honours_sync)
    counts = {"states": 0, "wrong": 0, "lost": 0}
    seen = set()
    allowed: dict[int, set[float]] = {}
    committed = 0
    for operation, *arguments in history(root):
        if operation == "begin":
            allowed.setdefault(arguments[0], set()).add(arguments[1])
            continue
        if operation == "committed":
            committed, allowed[arguments[0]] = arguments[0], {arguments[1]}
        else:
            volume.apply(operation, *arguments)
        for tree in volume.states(draw, limit):
            if (key := (frozen(tree), committed, frozenset(allowed.get(4, ())))) not in seen:
                seen.add(key)
                target = base / f"state-{len(seen)}"
                put(tree, target)
                _judge(target / "run" / "checkpoints", committed, allowed, counts)
    return counts


def _judge(
    folder: Path, committed: int, allowed: dict[int, set[float]], counts: dict[str, int]
) -> None:
    """What a run finds that starts now, and what the one after it finds when the leftovers were cleaned."""
    counts["states"] += 1
    for start in (1, 2):
        found, _ = checkpoint.load_newest(folder, quarantine=start == 2)
        if found is None:
            counts["lost"] += committed > 0
            return
        if found.step < committed:
            counts["lost"] += 1
            return
        value = found.state["value"]
        right = value in allowed[found.step] and all(
            bool((tensor == value).all())
            for group in found.tensors.values()
            for tensor in group.values()
        )
        if not right:
            counts["wrong"] += 1
            return
        checkpoint.tidy(folder)
