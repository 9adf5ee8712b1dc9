"""Trainbook: `from trainbook import Supervised, option, split` gives a task file its names.

Importing it lets `import lib` find Trainbook's library, here and in children. In a wheel the library lies in
`trainbook/home`, so that site-packages never gets a module of the common name `lib`.
"""

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lib.config import option
    from lib.errors import BadInput
    from lib.task.contract import Batch, Task, fingerprint
    from trainbook.keep import Keep
    from trainbook.supervised.folders import (
        BESIDE_MASKS,
        IN_FOLDERS,
        labelled_pictures,
        pictures_with_masks,
    )
    from trainbook.supervised.kinds import Classes, Labels, NextTokens, Numbers, Text, Tokens
    from trainbook.supervised.pictures import mask, picture
    from trainbook.supervised.samples import IGNORED, padded, split
    from trainbook.supervised.scoring import Judged
    from trainbook.supervised.tables import paragraphs, records
    from trainbook.supervised.task import Supervised

# The public names and their modules, which are imported at first use: the command must not wait for torch.
PUBLIC = {
    "BESIDE_MASKS": "trainbook.supervised.folders",
    "BadInput": "lib.errors",
    "Batch": "lib.task.contract",
    "Classes": "trainbook.supervised.kinds",
    "IGNORED": "trainbook.supervised.samples",
    "IN_FOLDERS": "trainbook.supervised.folders",
    "Judged": "trainbook.supervised.scoring",
    "Keep": "trainbook.keep",
    "Labels": "trainbook.supervised.kinds",
    "NextTokens": "trainbook.supervised.kinds",
    "Numbers": "trainbook.supervised.kinds",
    "Supervised": "trainbook.supervised.task",
    "Task": "lib.task.contract",
    "Text": "trainbook.supervised.kinds",
    "Tokens": "trainbook.supervised.kinds",
    "fingerprint": "lib.task.contract",
    "labelled_pictures": "trainbook.supervised.folders",
    "mask": "trainbook.supervised.pictures",
    "option": "lib.config",
    "padded": "trainbook.supervised.samples",
    "paragraphs": "trainbook.supervised.tables",
    "picture": "trainbook.supervised.pictures",
    "pictures_with_masks": "trainbook.supervised.folders",
    "records": "trainbook.supervised.tables",
    "split": "trainbook.supervised.samples",
}
__all__ = [
    "BESIDE_MASKS",
    "HOME",
    "IGNORED",
    "IN_FOLDERS",
    "BadInput",
    "Batch",
    "Classes",
    "Judged",
    "Keep",
    "Labels",
    "NextTokens",
    "Numbers",
    "Supervised",
    "Task",
    "Text",
    "Tokens",
    "fingerprint",
    "labelled_pictures",
    "mask",
    "option",
    "padded",
    "paragraphs",
    "picture",
    "pictures_with_masks",
    "records",
    "split",
]

_PACKAGE = Path(__file__).resolve().parent
HOME = (
    _PACKAGE / "home" if (_PACKAGE / "home").is_dir() else _PACKAGE.parent
)  # the latter in a checkout


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(
            f"module 'trainbook' has no attribute {name!r}; its names are {', '.join(PUBLIC)}."
        )
    return getattr(importlib.import_module(PUBLIC[name]), name)


def __dir__() -> list[str]:
    return __all__


def use(home: Path = HOME) -> None:
    """Puts the folder of `lib` before all others. Raises ImportError where another `lib` is imported already."""
    other = next(iter(getattr(sys.modules.get("lib"), "__path__", [])), None)
    if "lib" in sys.modules and (other is None or Path(other).resolve() != home / "lib"):
        what = f"Another module named lib is imported already ({other or 'a single file'}), as Trainbook's is named too"
        raise ImportError(
            f"{what}. Import trainbook before it, or give yours another name.", name="lib"
        )
    sys.path[:] = [str(home), *(entry for entry in sys.path if entry != str(home))]
    others = [
        entry
        for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if entry not in ("", str(home))
    ]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(home), *others])
    importlib.invalidate_caches()


use()
