"""Builds a graph of what a tree of Python files defines and uses, the same on every machine and at every build."""

import gc
import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import starmap
from pathlib import Path
from typing import Any

from lib.machine import disk
from workloads.codegraph import readers, trees
from workloads.codegraph.edges import edges
from workloads.codegraph.facts import Facts
from workloads.codegraph.records import ENTITIES, TRIPLES, Entity, Graph, Triple, write
from workloads.codegraph.resolve import Resolver
from workloads.codegraph.trees import Sources

_BUILDERS = ("text", "facts", "source", "resolve", "edges", "records", "trees", "graph")


def files(root: Path) -> list[str]:
    """Returns the Python files under `root` but excluded folders, sorted, as relative paths with forward slashes."""
    return list(trees.folder(root).files)


def build(source: Path | Sources, processes: int = 0) -> Graph:
    """Builds the graph of the tree under a folder, or of several. Lists files that cannot be read in `skipped`.

    The number of processes that read files, 0 for one a CPU, changes nothing. Raises BadInput where there is no file.
    """
    sources = source if isinstance(source, Sources) else Sources([trees.folder(Path(source))])
    jobs, skipped = sources.jobs()
    unread: dict[str, str] = {}
    facts = []
    with _without_collector():
        parsed = readers.run("parse", _contents(sources, jobs, unread), len(jobs), processes)
        for job, answer in zip(jobs, parsed, strict=True):
            if job.file in unread or not isinstance(answer, Facts):
                skipped.append((job.file, unread.get(job.file) or answer.reason))
            else:
                facts.append(answer)
        return _assemble(facts, sorted(skipped))


def _contents(sources: Sources, jobs: list[trees.Job], unread: dict[str, str]) -> Iterator[tuple[Any, ...]]:
    """Yields what `source.parse` takes; notes in `unread` which files cannot be read, and yields no text for them."""
    for job in jobs:
        try:
            content = sources.read(job.file)
        except OSError as error:
            unread[job.file], content = f"cannot be read: {error.strerror}", b""
        yield (content, *job)


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


def content_key(source: Path | Sources) -> str:
    """Hashes names and bytes of all files and this builder's own source: a sha256. Raises BadInput."""
    sources = source if isinstance(source, Sources) else Sources([trees.folder(Path(source))])
    digest = hashlib.sha256(sources.content.encode())
    for name in _BUILDERS:
        digest.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return digest.hexdigest()


def build_cached(source: Path | Sources, cache: Path) -> Graph:
    """Builds a graph, or reads it from `cache`, where it lies by content. A damaged copy is built again."""
    key = content_key(source)
    folder = Path(cache) / key[:24]
    graph = _read_cached(folder, key)
    if graph is not None:
        return graph
    graph = build(source)
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
