"""What a notebook carries: everything that it imports and nothing else, packed so that any text comes back."""

import base64
from pathlib import Path

import pytest

from trainbook.building import carrier

SOURCE = Path("notebooks_src/01_demo.py")
NASTY = ("r'''x''' \"\"\"y\"\"\" ''''z'''' \\''' a\\\\ \x00\x0c\r\u2028\ufeff"
         " ü 日本 {} %s\n# %% no cell\n!ls\n%x\n@NAME@ @PACKED@ '\\")  # fmt: skip
TASK = """
import lib.one
from lib.two import name
from lib import three as third, __version__
from trainbook.kaggle import client
try:
    from lib.pack.inner import four
except ImportError:
    pass
if TYPE_CHECKING:
    from lib import five
class Demo:
    from lib import six
    def read(self):
        from lib import seven
        from workloads.other import x
        subprocess.run([sys.executable, "-m", "lib.child", "asked"])
"""
ALWAYS = {"configs/demo.yaml", "lib/__init__.py", "lib/hello.py", "workloads/__init__.py",
          "workloads/demo/__init__.py", "workloads/demo/facts.yaml"}  # fmt: skip


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(
        tmp_path,
        dict.fromkeys([*ALWAYS, "lib/unused.py", "workloads/other.py", "configs/other.yaml"], ""),
    )
    return tmp_path


def carried(root: Path, planning: bool = False, cell: str = "from lib import hello") -> set[str]:
    return set(carrier.carried_files(root / SOURCE, ["demo"], ["demo"], planning, [cell], root))


def test_what_cells_tasks_and_configurations_import_is_carried_and_for_a_plan_nothing_of_a_task_s_functions(
    root: Path,
):
    assert carried(root) == ALWAYS
    assert carried(root, cell="import lib.unused as x\nfrom lib import hello") == ALWAYS | {
        "lib/unused.py"
    }
    words = ["two", "three", "four", "five", "six", "seven", "kaggle/__init__", "kaggle/client", "eight",
             "pack/__init__", "pack/inner/__init__", "pack/inner/four", "child/__init__", "child/__main__"]  # fmt: skip
    write(root, {f"lib/{word}.py": "" for word in words})
    write(
        root,
        {"lib/one.py": "def later():\n    import lib.eight\n", "workloads/demo/__init__.py": TASK},
    )
    pack = {"lib/pack/__init__.py", "lib/pack/inner/__init__.py", "lib/pack/inner/four.py"}
    single = {f"lib/{word}.py" for word in ("one", "two", "three", "six", "eight")}
    more = {"lib/seven.py", "workloads/other.py", "lib/child/__init__.py", "lib/child/__main__.py"}
    assert carried(root, planning=True) == ALWAYS | pack | single
    assert carried(root) == ALWAYS | pack | single | more


def test_a_configuration_s_base_and_the_data_of_a_package_go_with_it(root: Path) -> None:
    """A file in a plain folder belongs to the package above it; that of a package that is not imported stays."""
    for name in ("plain/deep/words.txt", "__pycache__/z.pyc", "sub/__init__.py", "sub/rules.yaml"):
        write(root, {f"workloads/demo/{name}": ""})
    write(root, {"configs/demo.yaml": "# small\nbase: other.yaml  # here\na: 1\n"})
    assert carried(root) == ALWAYS | {"configs/other.yaml", "workloads/demo/plain/deep/words.txt"}


def test_any_text_survives_packing() -> None:
    files = {"a": "", "b": NASTY, "ü": NASTY[::-1] * 999, "c": "\n", "d": '"""'}
    block = carrier.pack(files)
    assert set(block) <= set(base64._b85alphabet.decode())
    assert not set(block) & set("\"'\\")
    assert carrier.unpack(carrier.code("01_demo", files)) == files
