"""Builds the graph of the standard library twice, each in a fresh process, and keeps the figures in records/graph.json.

    python tests/bench/bench_graph.py               measures
    python tests/bench/bench_graph.py --sample 50   prints resolved call edges with their lines, to be judged by hand
    python tests/bench/bench_graph.py --judged 50 50 --note "..."   keeps the verdict
"""

import argparse
import datetime
import hashlib
import json
import os
import random
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_name("records") / "graph.json"
SEED = 20
sys.path.insert(0, str(REPOSITORY))

from tests.bench.record import head  # noqa: E402
from workloads.codegraph import graph, records, trees  # noqa: E402  the repository is found above

STANDARD_LIBRARY = Path(sysconfig.get_paths()["stdlib"])


def one_build(folder: Path) -> dict:
    """Builds and writes in this process; seconds without the imports, the peak of memory with them."""
    started = time.perf_counter()
    built = graph.build(STANDARD_LIBRARY)
    seconds = time.perf_counter() - started
    started = time.perf_counter()
    records.write(built, folder)
    write_seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # Linux counts in kB
    return {"seconds": round(seconds, 2), "write_seconds": round(write_seconds, 2), "peak_rss_mb": round(peak)}


def fresh_build(folder: Path, hash_seed: int) -> dict:
    """`one_build` in a new process, under a hash seed of its own."""
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    command = [sys.executable, __file__, "--child", str(folder)]
    done = subprocess.run(command, env=environment, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def digest(folder: Path) -> str:
    """One sha256 over both files."""
    content = b"".join((folder / name).read_bytes() for name in ("triples.jsonl", "entities.jsonl"))
    return hashlib.sha256(content).hexdigest()


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
    """The record: figures of two builds."""
    with tempfile.TemporaryDirectory() as temporary:
        folders = [Path(temporary, name) for name in ("first", "second")]
        runs = [fresh_build(folder, seed) for seed, folder in enumerate(folders, 1)]
        hashes = [digest(folder) for folder in folders]
        figures = statistics(records.read(folders[0]))
    return {
        **head(),
        "files": len(trees.folder(STANDARD_LIBRARY).files),
        "builds": runs,
        **figures,
        "byte_identical": hashes[0] == hashes[1],
        "sha256": hashes[0],
    }


def sample(count: int) -> None:
    """Prints call edges that end at a definition of the tree, with the line that states each."""
    built = graph.build(STANDARD_LIBRARY)
    edges = [t for t in built.triples if t.relation in ("calls", "instantiates") and built.entities[t.tail].file]
    for number, triple in enumerate(random.Random(SEED).sample(edges, count), 1):
        lines = (STANDARD_LIBRARY / triple.file).read_text("utf-8", errors="replace").splitlines()
        target = built.entities[triple.tail]
        print(f"{number}. {triple.head} {triple.relation} {triple.tail} ({target.file}:{target.first_line})")
        print(f"     {triple.file}:{triple.line}: {lines[triple.line - 1].strip()}")


def keep(record: dict) -> None:
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="print N resolved call edges")
    parser.add_argument("--judged", type=int, nargs=2, metavar=("RIGHT", "JUDGED"), help="keep a verdict by hand")
    parser.add_argument("--note", default="", help="what was wrong")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    known = json.loads(RECORD.read_text("utf-8")) if RECORD.is_file() else {}
    if options.child:
        print(json.dumps(one_build(options.child)))
    elif options.sample:
        sample(options.sample)
    elif options.judged:
        right, judged = options.judged
        verdict = {"date": datetime.date.today().isoformat(), "seed": SEED, "right": right, "judged": judged}
        keep({**known, "judged_by_hand": {**verdict, "note": options.note}})
    else:
        record = measure()
        keep({**record, **{key: known[key] for key in ("judged_by_hand",) if key in known}})
        print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
