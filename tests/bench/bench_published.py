"""What a published model gains on each kind of data; figures go to records/published.json.

    make published                                                      every row and seed that the record lacks
    python -m tests.bench.bench_published --rows "TREC frozen" --seeds 0

Each module of tests/bench/published has the rows of a kind. Downloads go to the folder TRAINBOOK_PUBLISHED, by default
~/.cache/trainbook-published; a row says where it looks for its data, and is left out without it. A row that was killed
resumes. All rows take an hour of two cores.
"""

import shutil
import sys

from tests.bench.published import gain, photographs, texts
from tests.bench.record import RECORDS, add_run, head, options_of, runs_of

RECORD = RECORDS / "published.json"
ROWS = {**texts.ROWS, **photographs.ROWS}


def main(arguments: list[str]) -> None:
    options = options_of(ROWS, "0,1,2", arguments, __doc__)
    runs = [(row, seed) for row in options.rows for seed in options.seeds]
    for name, seed in runs:
        key = f"{name}, seed {seed}"
        place = options.scratch / "published" / key.replace(",", "").replace(" ", "-")
        if seed not in ROWS[name].seeds or (key in runs_of(RECORD) and not options.again):
            continue
        if options.again:
            shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True, exist_ok=True)
        try:
            figures = ROWS[name].measured(seed, place)
        except gain.Missing as error:
            print(f"{key} is left out. {error}", flush=True)
            continue
        run = {**head("torch"), **figures}
        tables = add_run(
            RECORD, key, run, lambda runs: gain.summed_up(ROWS, runs), "torch", "transformers"
        )
        print(key, tables[name], flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
