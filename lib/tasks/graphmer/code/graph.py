"""From a tree of Python files to a graph of what they define and use, the same on every machine and at every build."""

import gc
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from itertools import starmap
from multiprocessing import get_context
from pathlib import Path

from lib.errors import BadInput
from lib.tasks.graphmer.code.edges import edges
from lib.tasks.graphmer.code.facts import Facts, Unreadable
from lib.tasks.graphmer.code.records import ENTITIES, TRIPLES, Entity, Graph, Triple, write
from lib.tasks.graphmer.code.resolve import Resolver
from lib.tasks.graphmer.code.source import parse

# Folders left out, as patterns: tests of the standard library and what is installed into it or made from it
EXCLUDED = (
    "test", "tests", "idle_test", "idlelib", "turtledemo", "site-packages", "dist-packages", "lib-dynload",
    "__pycache__", "_bundled", "config-*", "node_modules", ".*",
)  # fmt: skip
_BUILDERS = ("facts", "source", "resolve", "edges", "records", "graph")
# Bytes of source from which processes gain: two of them import torch first (8.9 s against 2.2 s alone for 11 MB)
_WORTH_PROCESSES = 200_000_000
Progress = Callable[[int, int], None]
_Job = tuple[str, str, frozenset[str]]  # file, module, names of submodules


def files(root: Path, excluded: tuple[str, ...] = EXCLUDED) -> list[str]:
    """The Python files under `root`, sorted, as paths relative to it with forward slashes."""
    if not root.is_dir():
        raise BadInput(f"There is no folder {root}. Give the folder of a tree of Python files.")
    found = []
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if not any(fnmatchcase(name, pattern) for pattern in excluded)]
        found += [Path(folder, name).relative_to(root).as_posix() for name in names if name.endswith(".py")]
    if not found:
        raise BadInput(f"There is no .py file under {root}. Give a tree of Python files, or mend the excluded folders.")
    return sorted(found)


def build(
    root: Path, processes: int = 2, progress: Progress | None = None, excluded: tuple[str, ...] = EXCLUDED
) -> Graph:
    """The graph of the tree under `root`. `progress(done, total)` is called after each file. What cannot be read is
    told in `skipped`; BadInput where there is no file at all."""
    root = Path(root)
    jobs, skipped = _jobs(root, files(root, excluded))
    with _without_collector():
        facts = []
        for number, one in enumerate(_parsed(root, jobs, processes), 1):
            if isinstance(one, Unreadable):
                skipped.append((one.file, one.reason))
            else:
                facts.append(one)
            if progress is not None:
                progress(number, len(jobs))
        return _assemble(facts, sorted(skipped))


def _jobs(root: Path, found: list[str]) -> tuple[list[_Job], list[tuple[str, str]]]:
    """Which file is which module. Of a module and a package of one name the package counts, as in an import."""
    prefix = f"{root.resolve().name}." if (root / "__init__.py").is_file() else ""
    modules: dict[str, str] = {}
    skipped = []
    for file in sorted(found, key=lambda file: (not file.endswith("__init__.py"), file)):
        if any("\ud800" <= letter <= "\udfff" for letter in file):
            skipped.append((ascii(file), "the file's name is not valid Unicode"))
            continue
        name = (prefix + file.removesuffix(".py").replace("/", ".")).removesuffix(".__init__")
        if modules.setdefault(name, file) != file:
            skipped.append((file, f"{modules[name]} is the module {name} too"))
    parts: dict[str, set[str]] = {}
    for name in modules:
        steps = name.split(".")
        for depth in range(1, len(steps)):
            parts.setdefault(".".join(steps[:depth]), set()).add(steps[depth])
    jobs = [(file, name, frozenset(parts.get(name, ()))) for name, file in modules.items()]
    return sorted(jobs, key=lambda job: job[0]), skipped


def _parsed(root: Path, jobs: list[_Job], processes: int) -> Iterator[Facts | Unreadable]:
    """Parses in order, in several processes where the tree is large enough to gain by it."""
    done = 0
    if processes > 1 and sum(_size(root / file) for file, _, _ in jobs) >= _WORTH_PROCESSES:
        try:
            with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:  # fork is unsafe after torch
                for one in pool.map(partial(_parse_file, root), jobs, chunksize=16):
                    done += 1
                    yield one
        except (BrokenProcessPool, OSError):
            pass  # a script without a main guard, or no memory for processes: go on here
    for job in jobs[done:]:
        yield _parse_file(root, job)


def _parse_file(root: Path, job: _Job) -> Facts | Unreadable:
    file, module, taken = job
    try:
        return parse((root / file).read_bytes(), file, module, taken)
    except OSError as error:
        return Unreadable(file, f"cannot be read: {error.strerror}")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@contextmanager
def _without_collector() -> Iterator[None]:
    """Millions of small objects and no cycles among them: the collector would double the time (4.6 s for 2.1)."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _assemble(facts: list[Facts], skipped: list[tuple[str, str]]) -> Graph:
    resolver = Resolver(facts)
    entities: dict[str, Entity] = {}
    for one in facts:
        for name, kind in ((f"file::{one.file}", "File"), (one.module, "Module")):
            entities[name] = Entity(name, kind, one.file, 1, one.lines)
        for definition in one.definitions:
            entity = Entity(definition.id, definition.kind, one.file, definition.first_line, definition.last_line)
            entities.setdefault(definition.id, entity)
    triples: dict[tuple[str, str, str], Triple] = {}
    duplicates = 0
    for one in facts:
        for head, relation, tail, kind, line in edges(resolver, one):
            if (head, relation, tail) in triples:
                duplicates += 1
                continue
            triples[head, relation, tail] = Triple(head, relation, tail, "python", one.file, one.module, line)
            if tail not in entities:
                entities[tail] = Entity(tail, kind)
    ordered = {name: entities[name] for name in sorted(entities)}
    return Graph([triples[key] for key in sorted(triples)], ordered, skipped, duplicates)


def content_key(root: Path, excluded: tuple[str, ...] = EXCLUDED) -> str:
    """A sha256 over names and bytes of all files and over this builder's own source."""
    root = Path(root)
    digest = hashlib.sha256()
    prefix = root.resolve().name if (root / "__init__.py").is_file() else ""
    own = [Path(__file__).with_name(f"{name}.py") for name in _BUILDERS]
    named = [(prefix, b""), *((path.name, path.read_bytes()) for path in own)]
    for name, content in [*named, *((file, _content(root / file)) for file in files(root, excluded))]:
        encoded = name.encode("utf-8", "surrogateescape")
        digest.update(b"%d %d " % (len(encoded), len(content)) + encoded + content)
    return digest.hexdigest()


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def build_cached(
    root: Path,
    cache: Path,
    processes: int = 2,
    progress: Progress | None = None,
    excluded: tuple[str, ...] = EXCLUDED,
) -> Graph:
    """As `build`, kept under `cache` by content. A damaged copy is found by its hashes and built again."""
    key = content_key(root, excluded)
    kept = Path(cache) / key[:24]
    graph = _read_kept(kept, key)
    if graph is not None:
        return graph
    graph = build(root, processes, progress, excluded)
    _keep(graph, kept, key)
    return graph


def _keep(graph: Graph, kept: Path, key: str) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".graph-", dir=kept.parent))
    write(graph, aside)
    hashes = {name: hashlib.sha256((aside / name).read_bytes()).hexdigest() for name in (TRIPLES, ENTITIES)}
    about = {"key": key, "sha256": hashes, "skipped": graph.skipped, "duplicates": graph.duplicates}
    (aside / "manifest.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(kept, ignore_errors=True)
    try:
        aside.rename(kept)
    except OSError:  # another process was first, with the same content
        shutil.rmtree(aside, ignore_errors=True)


def _read_kept(kept: Path, key: str) -> Graph | None:
    """What `_keep` wrote, or None where a byte of it has changed. The lines were checked when they were written."""
    try:
        about = json.loads((kept / "manifest.json").read_text("utf-8"))
        data = [(kept / name).read_bytes() for name in (TRIPLES, ENTITIES)]
        hashes = [about["sha256"][name] for name in (TRIPLES, ENTITIES)]
        skipped = [(file, reason) for file, reason in about["skipped"]]
        if about["key"] != key or [hashlib.sha256(one).hexdigest() for one in data] != hashes:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    with _without_collector():
        triples, entities = [json.loads(b"[" + b",".join(one.splitlines()) + b"]") for one in data]
        rows = ((row["head"], row["relation"], row["tail"], *row["qualifiers"].values()) for row in triples)
        known = {row["id"]: Entity(**row) for row in entities}
        return Graph(list(starmap(Triple, rows)), known, skipped, about["duplicates"])
