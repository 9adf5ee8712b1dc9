"""What the server does that loader workers are forked from: it imports this before anything else.

Elsewhere importing it does nothing. What takes long to import is imported here once, and not in each worker.
"""

import gc
import os
import signal
import sys
from functools import partial

from lib.config import environment

if sys.argv[0] == "-c" and os.environ.get(environment.FORK_SERVER) == str(os.getppid()):
    # It ends with the process that started it, and each worker with it; an interrupt is for neither. To Linux the
    # starter is a thread: where that ends before its process, the next training starts another server.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from lib import ranks

    ranks.die_with(os.getppid())
    os.register_at_fork(after_in_child=partial(ranks.die_with, os.getpid()))
    import lib.training.data
    import lib.training.workers  # noqa: F401  and with them torch and NumPy

    gc.freeze()  # a collection in a worker would write to, and so copy, the memory that all of them share
