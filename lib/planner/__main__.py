"""The process that makes a plan: `python -m lib.planner REQUEST ANSWER`, two files; see process.py."""

import sys

from lib.planner.process import write_plan

if __name__ == "__main__":
    sys.exit(write_plan(*sys.argv[1:]))
