"""Builds a graph of what a tree of Python files defines and uses, the same on every machine and at every build."""

import gc
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import starmap
from pathlib import Path

from lib.errors import BadInput
from lib.machine import disk
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
_Job = tuple[str, str, frozenset[str]]  # file, module, names of submodules


def files(root: Path) -> list[str]:
    """Returns the Python files under `root` but EXCLUDED folders, sorted, as relative paths with forward slashes."""
    if not root.is_dir():
        raise BadInput(f"There is no folder {root}. Give the folder of a tree of Python files.")
    paths = []
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if not any(fnmatchcase(name, pattern) for pattern in EXCLUDED)]
        paths += [Path(folder, name).relative_to(root).as_posix() for name in names if name.endswith(".py")]
    if not paths:
        raise BadInput(f"There is no .py file under {root} outside of folders of tests. Give a tree of Python files.")
    return sorted(paths)


def build(root: Path) -> Graph:
    """Builds the graph of the tree under `root`. Lists files that cannot be read in `skipped`.

    Raises BadInput where there is no file at all.
    """
    root = Path(root)
    jobs, skipped = _jobs(root, files(root))
    facts = []
    with _without_collector():
        for file, module, submodules in jobs:
            try:
                parsed = parse((root / file).read_bytes(), file, module, submodules)
            except OSError as error:
                parsed = Unreadable(file, f"cannot be read: {error.strerror}")
            if isinstance(parsed, Unreadable):
                skipped.append((parsed.file, parsed.reason))
            else:
                facts.append(parsed)
        return _assemble(facts, sorted(skipped))


def _jobs(root: Path, paths: list[str]) -> tuple[list[_Job], list[tuple[str, str]]]:
    """Names the module of each file. Of a module and a package of one name the package counts, as in an import."""
    prefix = f"{root.resolve().name}." if (root / "__init__.py").is_file() else ""
    modules: dict[str, str] = {}
    skipped = []
    for file in sorted(paths, key=lambda file: (not file.endswith("__init__.py"), file)):
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


@contextmanager
def _without_collector() -> Iterator[None]:
    """Stops the collector: for millions of small objects without cycles it would double the time (4.6 s for 2.1)."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _assemble(facts: list[Facts], skipped: list[tuple[str, str]]) -> Graph:
    resolver = Resolver(facts)
    entities: dict[str, Entity] = {}
    for source in facts:
        for name, kind in ((f"file::{source.file}", "File"), (source.module, "Module")):
            entities[name] = Entity(name, kind, source.file, 1, source.lines)
        for definition in source.definitions:
            entity = Entity(definition.id, definition.kind, source.file, definition.first_line, definition.last_line)
            entities.setdefault(definition.id, entity)
    triples: dict[tuple[str, str, str], Triple] = {}
    duplicates = 0
    for source in facts:
        for head, relation, tail, kind, line in edges(resolver, source):
            if (head, relation, tail) in triples:
                duplicates += 1
                continue
            triples[head, relation, tail] = Triple(head, relation, tail, "python", source.file, source.module, line)
            if tail not in entities:
                entities[tail] = Entity(tail, kind)
    ordered = {name: entities[name] for name in sorted(entities)}
    return Graph([triples[key] for key in sorted(triples)], ordered, skipped, duplicates)


def content_key(root: Path) -> str:
    """Hashes names and bytes of all files and this builder's own source: a sha256. Raises BadInput."""
    root = Path(root)
    digest = hashlib.sha256()

    def add(name: str, content: bytes) -> None:
        encoded = name.encode("utf-8", "surrogateescape")
        digest.update(b"%d %d " % (len(encoded), len(content)) + encoded + content)

    add(root.resolve().name if (root / "__init__.py").is_file() else "", b"")
    for name in _BUILDERS:
        add(name, Path(__file__).with_name(f"{name}.py").read_bytes())
    for file in files(root):
        try:
            add(file, (root / file).read_bytes())
        except OSError:  # `build` lists it as unreadable
            add(file, b"")
    return digest.hexdigest()


def build_cached(root: Path, cache: Path) -> Graph:
    """Builds a graph, or reads it from `cache`, where it lies by content. A damaged copy is built again."""
    key = content_key(root)
    folder = Path(cache) / key[:24]
    graph = _read_cached(folder, key)
    if graph is not None:
        return graph
    graph = build(root)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with disk.whole(folder, cache=True) as aside:
            write(graph, aside)
            hashes = {name: hashlib.sha256((aside / name).read_bytes()).hexdigest() for name in (TRIPLES, ENTITIES)}
            manifest = {"key": key, "sha256": hashes, "skipped": graph.skipped, "duplicates": graph.duplicates}
            (aside / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        if not folder.is_dir():  # else another process was first, with the same content
            why = error.strerror or error
            print(f"The graph is not kept for the next run, because {folder} cannot be written ({why}).")
    return graph


def _read_cached(folder: Path, key: str) -> Graph | None:
    """Reads what `build_cached` wrote; None where a byte of it has changed. The lines themselves are not checked."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
        contents = [(folder / name).read_bytes() for name in (TRIPLES, ENTITIES)]
        hashes = [manifest["sha256"][name] for name in (TRIPLES, ENTITIES)]
        skipped = [(file, reason) for file, reason in manifest["skipped"]]
        if manifest["key"] != key or [hashlib.sha256(content).hexdigest() for content in contents] != hashes:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    with _without_collector():
        triples, entities = [json.loads(b"[" + b",".join(content.splitlines()) + b"]") for content in contents]
        rows = ((row["head"], row["relation"], row["tail"], *row["qualifiers"].values()) for row in triples)
        by_id = {row["id"]: Entity(**row) for row in entities}
        return Graph(list(starmap(Triple, rows)), by_id, skipped, manifest["duplicates"])
