"""Builds a graph of what a tree of Python files defines and uses, the same on every machine and at every build."""

import gc
import hashlib
from pathlib import Path
from typing import Any

from workloads.codegraph import readers, trees
from workloads.codegraph.edges import edges
from workloads.codegraph.facts import Facts
from workloads.codegraph.records import Entity, Graph, Triple
from workloads.codegraph.resolve import Resolver
from workloads.codegraph.trees import Sources

_BUILDERS = ("text", "facts", "source", "resolve", "edges", "records", "trees", "graph")


def build(source: Path | Sources, processes: int = 0) -> Graph:
    """Builds the graph of the tree under a folder, or of several. Lists files that cannot be read in `skipped`.

    The number of processes that read files, 0 for one a CPU, changes nothing. Raises BadInput if there is no file.
    """
    sources = source if isinstance(source, Sources) else Sources([trees.folder(source)])
    jobs, skipped = sources.jobs()
    unread: dict[str, str] = {}

    def arguments(job: trees.Job) -> tuple[Any, ...]:
        try:
            return (sources.read(job.file), *job)
        except OSError as error:
            unread[job.file] = f"cannot be read: {error.strerror}"
            return (b"", *job)

    was_enabled = gc.isenabled()
    gc.disable()  # for millions of small objects without cycles it would double the time (4.6 s for 2.1)
    try:
        facts = []
        for job, answer in zip(jobs, readers.run("parse", jobs, arguments, processes), strict=True):
            if job.file in unread or not isinstance(answer, Facts):
                skipped.append((job.file, unread.get(job.file) or answer.reason))
            else:
                facts.append(answer)
        return _assembled(facts, sorted(skipped))
    finally:
        if was_enabled:
            gc.enable()


def _assembled(facts: list[Facts], skipped: list[tuple[str, str]]) -> Graph:
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
    sources = source if isinstance(source, Sources) else Sources([trees.folder(source)])
    digest = hashlib.sha256(sources.content.encode())
    for name in _BUILDERS:
        digest.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return digest.hexdigest()
