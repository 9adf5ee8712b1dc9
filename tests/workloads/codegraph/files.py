"""Trees of sources, written for a test."""

import sysconfig
from pathlib import Path

from workloads.codegraph import graph, ontology

STANDARD_LIBRARY = Path(sysconfig.get_paths()["stdlib"])


def tree(root: Path, **sources: str) -> Path:
    """Writes files; `a__b` is a/b.py and `a__` is a/__init__.py."""
    for name, source in sources.items():
        path = root / (name.replace("__", "/") + ("__init__.py" if name.endswith("__") else ".py")).lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    return root


def unusual(built) -> list:
    """The triples with an entity whose type lies outside of the domain or the range of their relation."""
    found = []
    for triple in built.triples:
        head, tail = (built.entities[name].type for name in (triple.head, triple.tail))
        relation = ontology.RELATIONS[triple.relation]
        if head not in relation["domain"] or tail not in relation["range"]:
            found.append(triple)
    return found


def edges(root: Path, *relations: str, **sources: str) -> set[tuple[str, str, str]]:
    """The keys of a tree's triples, checked against the ontology; only of the relations, if there are any."""
    built = graph.build(tree(root, **sources))
    assert unusual(built) == []
    return {triple.key for triple in built.triples if not relations or triple.relation in relations}
