"""How much padding buckets by length save: counted on the sentences of real judgments, none of which is computed.

    python -m tests.bench.bench_buckets

A batch is as long as its longest sample. Counted is how many positions ten epochs take for each word that is there,
shuffled and in buckets, for the words of each sentence and for these cut to 64. Figures go to records/buckets.json.
"""

import itertools
from pathlib import Path

import numpy as np

from lib.training.order import buckets, permutation
from tests.bench.record import head, write
from tests.conftest import SAMPLES

RECORD = Path(__file__).with_name("records") / "buckets.json"
TEXTS = SAMPLES / "legal_rr_lawai" / "data" / "text"
EPOCHS, BATCHES, POOLS = 10, (16, 32), (5, 50)


def sentences() -> list[str]:
    lines = (line for path in sorted(TEXTS.glob("*.txt")) for line in path.read_text("utf-8").splitlines())
    return [line.rpartition("\t")[0] for line in lines if "\t" in line]


def padded(lengths: np.ndarray, order: np.ndarray, batch: int) -> float:
    """Returns the positions of whole batches for each word in them."""
    dealt = lengths[order[: len(order) // batch * batch]].reshape(-1, batch)
    return float(dealt.max(1).sum() * batch / dealt.sum())


def measured(lengths: np.ndarray, batch: int) -> dict[str, float]:
    def through(epoch_of) -> float:
        return round(padded(lengths, np.concatenate([epoch_of(epoch) for epoch in range(EPOCHS)]), batch), 3)

    shuffled = through(lambda epoch: permutation(0, epoch, len(lengths)))
    pools = {pool: through(lambda epoch, pool=pool: buckets(lengths, 0, epoch, batch, pool)) for pool in POOLS}
    return {"shuffled": shuffled, **{f"buckets of {pool} batches": figure for pool, figure in pools.items()}}


def main() -> None:
    words = np.array([len(text.split()) for text in sentences()])
    figures = {
        f"{cut}, batches of {batch}": measured(lengths, batch)
        for (cut, lengths), batch in itertools.product(
            {"whole": words, "cut to 64 words": words.clip(max=64)}.items(), BATCHES
        )
    }
    spread = {f"{share} %": int(np.percentile(words, share)) for share in (50, 90, 100)}
    write(RECORD, {
        **head("numpy"), "sentences": len(words), "words of a sentence": spread, "positions for each word": figures,
    })  # fmt: skip
    for name, row in figures.items():
        print(name, row)


if __name__ == "__main__":
    main()
