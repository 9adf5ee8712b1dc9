"""Trees of sources and graphs in JSON lines, written for a test."""

import sysconfig
from pathlib import Path

from workloads.codegraph import graph, ontology

STANDARD_LIBRARY = Path(sysconfig.get_paths()["stdlib"])
GOOD = '{"head": "a", "relation": "r", "tail": "b", "qualifiers": {"language": "x", "file": "f", "module": "m"}}'


def tree(root: Path, **sources: str) -> Path:
    """Writes files; `a__b` is a/b.py and `a__` is a/__init__.py."""
    for name, source in sources.items():
        path = root / (
            name.replace("__", "/") + ("__init__.py" if name.endswith("__") else ".py")
        ).lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    return root


def edges(root: Path, *relations: str, **sources: str) -> set[tuple[str, str, str]]:
    """The keys of a tree's triples, checked against the ontology; only of the relations, if there are any."""
    built = graph.build(tree(root, **sources))
    assert ontology.check(built, ontology.load()) == []
    return {triple.key for triple in built.triples if not relations or triple.relation in relations}


def given(
    folder: Path, *lines: str, entities: tuple[str, ...] = ('{"id": "a", "type": "T"}',)
) -> Path:
    (folder / "x.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "x.entities.jsonl").write_text("\n".join(entities) + "\n", encoding="utf-8")
    return folder
