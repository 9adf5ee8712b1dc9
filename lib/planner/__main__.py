"""The process that makes a plan: `python -m lib.planner REQUEST ANSWER`, two files; see process.py."""

import pickle
import sys
from pathlib import Path

from lib.errors import BadInput
from lib.planner.search import make
from lib.planner.trace import NotTraceable
from lib.task import load_config


def main(request: str, answer: str) -> int:
    """Writes the plan and returns 0; prints a sentence and returns 2 for bad input, 3 for a step without a trace."""
    path, target, count = pickle.loads(Path(request).read_bytes())
    try:
        plan = make(load_config(path), target, count)
    except BadInput as error:
        print(error, file=sys.stderr)
        return 3 if isinstance(error, NotTraceable) else 2
    Path(answer).write_bytes(pickle.dumps(plan))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
