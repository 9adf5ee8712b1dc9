"""Strong simple methods beside the network: scikit-learn's, fitted to what batches hold, kept as arrays.

Texts have linear models of words and characters, words those of themselves and their neighbours and their commonest
tag, pictures one of pooled colours and gradients, tables and pixels also trees. The strongest by folds of the training
samples is the reference. A run may start from it: then the network has a say, by a gate, only as far as validation
shows a gain.
"""

from trainbook.supervised.simple.encoded import probe
from trainbook.supervised.simple.families import FAMILIES
from trainbook.supervised.simple.fitting import (
    Choice,
    choose,
    fit,
    losses,
    refit,
    seconds_after,
)
from trainbook.supervised.simple.gate import (
    GATE,
    KEY,
    UNSEEN,
    batch,
    gated,
    shaped,
    with_buffers,
)
from trainbook.supervised.simple.method import Method, as_json, packed, unpacked
from trainbook.supervised.simple.rows import AT_ONCE, Rows
from trainbook.supervised.simple.stored import restored

__all__ = [
    "AT_ONCE", "FAMILIES", "GATE", "KEY", "UNSEEN", "Choice", "Method", "Rows", "as_json", "batch", "choose",
    "fit", "gated", "losses", "packed", "probe", "refit", "restored", "seconds_after", "shaped",
    "unpacked", "with_buffers",
]  # fmt: skip
