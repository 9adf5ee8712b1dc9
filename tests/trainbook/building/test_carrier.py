"""What a notebook carries: everything that it imports and nothing else, packed so that any text comes back."""

import base64
import hashlib
import subprocess
from pathlib import Path

import pytest

from lib.errors import BadInput
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


def test_what_cells_and_tasks_import_is_carried(
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


NASTY_FILES = {"a": "", "b": NASTY, "ü" * 200: NASTY[::-1] * 999, "c": "\n", "d": '"""'}


def test_any_text_survives_packing() -> None:
    block = carrier.pack(NASTY_FILES)
    assert set(block) <= set(base64._b85alphabet.decode() + "\n")
    assert not set(block) & set("\"'\\")
    assert carrier.unpack(carrier.code("01_demo", NASTY_FILES)) == NASTY_FILES


def test_what_the_cell_runs_stands_in_clear_above_few_lines_of_payload() -> None:
    long = {
        "lib/__init__.py": '__version__ = "7"\n',
        "noise": hashlib.sha512(b"").hexdigest() * 300,
    }
    code = carrier.code("01_demo", long, commit="abc")
    assert 'VERSION = "7"\nCOMMIT = "abc"\n' in code
    clear, _, payload = code.partition('\nHOME = library("""\n')
    assert "exec(" not in clear
    assert max(map(len, clear.split("\n"))) <= 120
    assert payload == carrier.pack(long) + '\n""")'
    assert max(map(len, payload.split("\n"))) <= carrier.WIDTH


EDITS = [
    ('HOME = library("""', 'HOME = library("""!!'),  # not in base 85
    ('HOME = library("""', 'library("""'),
]


@pytest.mark.parametrize(("old", "new"), EDITS)
def test_an_edited_payload_is_refused(old: str, new: str) -> None:
    code = carrier.code("01_demo", {"a": "b"})
    assert code.count(old) == 1
    with pytest.raises(BadInput, match="can no longer be read"):
        carrier.unpack(code.replace(old, new))


def test_the_commit_is_that_of_the_checkout_and_names_changes(root: Path) -> None:
    def git(*words: str) -> str:
        identity = ["-c", "user.name=A", "-c", "user.email=a@b"]
        command = ["git", "-C", str(root), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert carrier.commit_of(root) == ""
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    commit = git("rev-parse", "--short=12", "HEAD")
    (root / "notebooks").mkdir()
    (root / "notebooks" / "x.ipynb").write_text("built later")
    assert carrier.commit_of(root) == commit
    (root / "lib" / "hello.py").write_text("new")
    assert carrier.commit_of(root) == f"{commit} with changes"
