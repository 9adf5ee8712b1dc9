"""The process that a plan is made in: `python -m lib.planner ASKED ANSWER`, two files; see process.py."""

import pickle
import sys
from pathlib import Path

from lib.errors import BadInput
from lib.planner.search import make
from lib.planner.trace import NotTraceable
from lib.task import load_config


def main(asked: str, answer: str) -> int:
    """Writes the plan; prints a sentence and returns 2 for bad input, 3 for a step that cannot be traced."""
    path, target, count = pickle.loads(Path(asked).read_bytes())
    try:
        made = make(load_config(path), target, count)
    except BadInput as error:
        print(error, file=sys.stderr)
        return 3 if isinstance(error, NotTraceable) else 2
    Path(answer).write_bytes(pickle.dumps(made))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
