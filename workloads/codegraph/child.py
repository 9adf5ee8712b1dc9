"""Reads source files in a process of its own, which a file may crash, stall or fill.

It is run as a program and imports the standard library alone: starting it takes 20 ms, and no package is imported that
stands around these modules. Jobs come as pickles on its input: the name of a function and its arguments. For each it
writes one pickle.
"""

import gc
import pickle
import sys
import types
from pathlib import Path

_MOST_BYTES = 2**31  # of memory; a file of 1 MiB takes 140 MB


def main() -> None:
    """Answers jobs until there are no more."""
    home = Path(__file__).resolve().parent
    for depth, name in enumerate(["workloads.codegraph", "workloads"]):
        package = types.ModuleType(name)
        package.__path__ = [str([home, *home.parents][depth])]  # type: ignore[attr-defined]
        sys.modules[name] = package
    from workloads.codegraph import source, text

    functions = {"parse": source.parse, "words": text.words_by_line}
    _limit_memory()
    gc.disable()  # a tree has no cycles, and collecting would double the time
    jobs, answers = sys.stdin.buffer, sys.stdout.buffer
    pickle.dump("ready", answers)
    answers.flush()
    while True:
        try:
            name, arguments = pickle.load(jobs)
        except EOFError:
            return
        try:
            answer = functions[name](*arguments)
        except (MemoryError, RecursionError) as error:
            answer = error
        pickle.dump(answer, answers, 5)
        answers.flush()


def _limit_memory() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    except (ImportError, OSError, ValueError):  # Windows, macOS
        return


if __name__ == "__main__":
    main()
