"""The command `trainbook`: what `python -m lib` is in a checkout."""

import os
import runpy

import trainbook  # noqa: F401  which lets `lib` be found


def main() -> None:
    """Runs the command line of `lib` and ends this process with its exit code."""
    os.environ["TRAINBOOK_COMMAND"] = "trainbook"  # for advice with a command in it (lib/config/environment.py)
    runpy.run_module("lib", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
