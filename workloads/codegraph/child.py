"""Reads source files in a process of its own, which a file may crash, stall or fill.

As a program it imports the standard library, `facts` and `source` alone: it starts in 20 ms.
Its input is a pickle: the name of a function, the seconds of CPU time that a job may take, and the arguments of each
job. It writes a pickle when it has started, and one for each job.
"""

import gc
import pickle
import signal
import sys
from contextlib import suppress
from pathlib import Path

_MOST_BYTES = 2**31  # of memory; a file of 1 MiB takes 140 MB


def main() -> None:
    """Answers the jobs."""
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    from workloads.codegraph import facts, source

    with suppress(ImportError, OSError, ValueError):  # on Windows and macOS
        import resource

        for kind, most in ((resource.RLIMIT_AS, _MOST_BYTES), (resource.RLIMIT_CORE, 0)):
            resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))
    gc.disable()  # a tree has no cycles, and collecting would double the time
    answers = sys.stdout.buffer
    pickle.dump("ready", answers)
    answers.flush()
    name, seconds, jobs = pickle.load(sys.stdin.buffer)
    function = {"parse": source.parse, "words": facts.words_by_line}[name]
    for arguments in jobs:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_VIRTUAL, seconds)  # ends the process by SIGVTALRM
        try:
            answer = function(*arguments)
        except (MemoryError, RecursionError) as error:
            answer = error
        pickle.dump(answer, answers, 5)
        answers.flush()


if __name__ == "__main__":
    main()
