"""Trainbook as an installed package: importing it lets `import lib` find Trainbook's library, here and in children.

The library lies in `trainbook/home`, so that nobody's site-packages has a module of the common name `lib`.
"""

import importlib
import os
import sys
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
HOME = _PACKAGE / "home" if (_PACKAGE / "home").is_dir() else _PACKAGE.parent  # the latter in a checkout


def use(home: Path = HOME) -> None:
    """Puts the folder of `lib` before all others. Raises ImportError where another `lib` is imported already."""
    other = next(iter(getattr(sys.modules.get("lib"), "__path__", [])), None)
    if "lib" in sys.modules and (other is None or Path(other).resolve() != home / "lib"):
        what = f"Another module named lib is imported already ({other or 'a single file'}), as Trainbook's is named too"
        raise ImportError(f"{what}. Import trainbook before it, or give yours another name.", name="lib")
    sys.path[:] = [str(home), *(entry for entry in sys.path if entry != str(home))]
    others = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry not in ("", str(home))]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(home), *others])
    importlib.invalidate_caches()


use()
