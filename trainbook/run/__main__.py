"""`python -m trainbook.run FILE`: runs the settings of a file; --part leaves the archive to the process above."""

import sys

from lib.errors import BadInput, TrainingFailed
from lib.report.printing import safe_printing
from trainbook import run
from trainbook.run import settings


def main() -> int:
    file, *rest = sys.argv[1:]
    try:
        return run.run(settings.read(file, {}, []), packs=not rest)
    except (BadInput, TrainingFailed) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, BadInput) else 1


if __name__ == "__main__":
    with safe_printing():
        code = main()
    sys.exit(code)
