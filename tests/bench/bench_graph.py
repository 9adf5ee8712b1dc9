"""Builds the graph of the standard library twice, each in a fresh process; figures go to records/graph.json.

    python -m tests.bench.bench_graph               measures
    python -m tests.bench.bench_graph --sample 50   prints resolved call edges with their lines, to be judged by hand

The verdict by hand stays in the record ("judged_by_hand").
"""

import argparse
import hashlib
import json
import os
import random
import resource
import subprocess
import sys
import sysconfig
import time
from collections import Counter, defaultdict
from pathlib import Path

from tests.bench.record import RECORDS, head, publish
from workloads.codegraph import graph, records, trees

ROOT = Path(__file__).resolve().parents[2]
SEED = 20
STANDARD_LIBRARY = Path(sysconfig.get_paths()["stdlib"])


def one_build() -> dict:
    """Builds in this process; returns seconds without the imports, the peak of memory with them, and a hash."""
    begin = time.perf_counter()
    built = graph.build(STANDARD_LIBRARY)
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # Linux counts in kB
    digest = hashlib.sha256(repr(built).encode("utf-8", "surrogateescape")).hexdigest()
    return {"seconds": round(seconds, 2), "peak_rss_mb": round(peak), "sha256": digest}


def fresh_build(hash_seed: int) -> dict:
    """Runs `one_build` in a new process, under a hash seed of its own."""
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    command = [sys.executable, "-m", "tests.bench.bench_graph", "--child"]
    done = subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def statistics(built: records.Graph) -> dict:
    """Shares are between 0 and 1, of unique edges whose tail is defined in the tree. Calls are `calls` and
    `instantiates` together; `two_hop_paths` counts distinct a -> b -> c of them with c != a."""
    defined = {triple.tail for triple in built.triples if triple.relation in ("defines", "contains", "declares")}
    calls = [triple for triple in built.triples if triple.relation in ("calls", "instantiates")]
    bases = [triple for triple in built.triples if triple.relation == "inherits_from"]
    following: dict[str, set[str]] = defaultdict(set)
    for triple in calls:
        if triple.tail in defined:
            following[triple.head].add(triple.tail)
    return {
        "triples": len(built.triples),
        "entities": len(built.entities),
        "relations": dict(sorted(Counter(triple.relation for triple in built.triples).items())),
        "calls_resolved": sum(triple.tail in defined for triple in calls) / max(1, len(calls)),
        "bases_resolved": sum(triple.tail in defined for triple in bases) / max(1, len(bases)),
        "two_hop_paths": sum(len(following.get(b, set()) - {a}) for a, tails in following.items() for b in tails),
    }


def measure() -> dict:
    """Returns the figures of two builds."""
    runs = [fresh_build(seed) for seed in (1, 2)]
    digests = [run.pop("sha256") for run in runs]
    return {
        **head(), "files": len(trees.folder(STANDARD_LIBRARY).files), "builds": runs,
        **statistics(graph.build(STANDARD_LIBRARY)),
        "byte_identical": digests[0] == digests[1], "sha256": digests[0],
    }  # fmt: skip


def sample(count: int) -> None:
    """Prints call edges that end at a definition of the tree, with the line that states each."""
    built = graph.build(STANDARD_LIBRARY)
    edges = [t for t in built.triples if t.relation in ("calls", "instantiates") and built.entities[t.tail].file]
    for number, triple in enumerate(random.Random(SEED).sample(edges, count), 1):
        lines = (STANDARD_LIBRARY / triple.file).read_text("utf-8", errors="replace").splitlines()
        target = built.entities[triple.tail]
        print(f"{number}. {triple.head} {triple.relation} {triple.tail} ({target.file}:{target.first_line})")
        print(f"     {triple.file}:{triple.line}: {lines[triple.line - 1].strip()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="print N resolved call edges")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(one_build()))
    elif options.sample:
        sample(options.sample)
    else:
        earlier = json.loads((RECORDS / "graph.json").read_text("utf-8"))
        publish("graph", {**measure(), "judged_by_hand": earlier["judged_by_hand"]})


if __name__ == "__main__":
    main()
