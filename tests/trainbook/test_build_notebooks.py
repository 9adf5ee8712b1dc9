"""Notebooks are built byte for byte, and work alone in an empty folder."""

import hashlib
import importlib
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import nbformat
import pytest

from lib.errors import BadInput
from tests.conftest import ROOT
from tests.trainbook.building.test_carrier import write
from trainbook.building import carrier

build = importlib.import_module("build_notebooks")
HEADER = """\
# ---
# trainbook:
#   title: "A demo: tiny"
#   tasks: [demo]
#   configs: [demo]
#   gpu: true
# ---
"""
CELLS = """\

# %% [markdown]
# # Demo
#
# Says *hello*.

# %% tags=["carrier"]
# The build puts lib here.

# %% Imports
import os
import subprocess
import sys

from lib import hello  # a comment that stays

# rm old runs
# cp x y

# %% Parameters tags=["parameters"]
NAME: str = "world"
STEPS: int = 0
OVERRIDES: dict = {}

# %% Ask _kg_hide-input=true jupyter={"source_hidden": true}
print(hello.greet(NAME), HOME.name)
code = "import lib.hello; print(lib.hello.greet('child'))"
print(subprocess.run([sys.executable, "-c", code], check=True, cwd="/", capture_output=True, text=True).stdout)


# %% [markdown]
# ---

# %% [markdown]
# ---

# %%
def last() -> Path:
    return HOME / "configs"


(last() / "demo.yaml").read_text(encoding="utf-8")
"""
HELLO = '"""Greets, grüßt."""\n\n\ndef greet(name: str) -> str:\n    return f"hello {name}"\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tiny repository with one source, 01_demo."""
    empty = [
        "lib/unused.py",
        "workloads/__init__.py",
        "workloads/other.py",
        "workloads/demo/__init__.py",
    ]
    empty += [
        "workloads/demo/__pycache__/x.pyc",
        "workloads/demo/.hidden/y.py",
        "configs/other.yaml",
    ]
    write(tmp_path / "repo", dict.fromkeys(empty, ""))
    write(tmp_path / "repo", {
        "lib/__init__.py": '__version__ = "1"\n', "lib/hello.py": HELLO, "workloads/demo/facts.yaml": "größe: 1\n",
        "configs/demo.yaml": "a: 1\n", "notebooks_src/01_demo.py": HEADER + CELLS,
    })  # fmt: skip
    return tmp_path / "repo"


def source(root: Path) -> Path:
    return root / "notebooks_src" / "01_demo.py"


def notebook(root: Path) -> Path:
    return root / "notebooks" / "01_demo.ipynb"


def carrier_cell(text: str) -> str:
    cells = json.loads(text)["cells"]
    return next(
        "".join(cell["source"]) for cell in cells if "carrier" in cell["metadata"].get("tags", [])
    )


def test_a_build_keeps_what_a_run_showed_until_the_cell_changes(root: Path, monkeypatch) -> None:
    path = source(root)
    picture = 'from IPython.display import HTML, display\ndisplay(HTML("<b>bold</b>"))\n'
    path.write_text(path.read_text() + f"\n# %%\n{picture}\n# %%\nprint(last().name)\n")
    assert build.main(["--run"], root) == build.main(["--check"], root) == 0
    cells = nbformat.read(notebook(root), as_version=4).cells
    drawn = cells[-2].outputs
    named = cells[-1].outputs
    assert drawn[0].data["text/html"] == "<b>bold</b>"
    assert named[0].text == "configs\n"
    assert str(root.parent) not in notebook(root).read_text()
    path.write_text(path.read_text().replace("print(last().name)", "print(last())"))
    assert build.main(["--check"], root) == 1
    assert build.main([], root) == 0
    cells = nbformat.read(notebook(root), as_version=4).cells
    assert cells[-2].outputs == drawn
    assert not cells[-1].outputs


def test_the_same_bytes_from_any_process_and_folder_and_only_a_changed_file_is_written(
    root: Path,
) -> None:
    code = "import sys; from pathlib import Path; import build_notebooks as b; b.main([], Path(sys.argv[1]))"
    assert build.main([], root) == 0
    text = notebook(root).read_bytes()
    before = notebook(root).stat()
    assert b"\r" not in text
    assert text.endswith(b"}\n")
    assert str(root.parent).encode() not in text
    other = next(
        seed for seed in ("1", "2") if seed != os.environ.get("PYTHONHASHSEED")
    )  # than this process has
    environment = {**os.environ, "PYTHONHASHSEED": other, "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, "-c", code, str(root)], check=True, cwd=root / "configs", env=environment
    )
    after = notebook(root).stat()
    assert before.st_mtime_ns == after.st_mtime_ns
    assert before.st_ino == after.st_ino
    assert notebook(root).read_bytes() == text


MISTAKES = [
    ("tasks: [demo]", "tasks: [nothing]", r"'nothing'.* no such folder"),
    (
        "import os\n",
        "!ls\n",
        r"01_demo\.py: no Python, such as a shell command .* with '!ls': line 1, invalid syntax",
    ),
]


def test_mistakes_and_content_that_cannot_be_carried_are_refused_and_nothing_is_written(
    root: Path, capsys
) -> None:
    for old, new, message in MISTAKES:
        source(root).write_text((HEADER + CELLS).replace(old, new, 1), encoding="utf-8")
        assert build.main([], root) == 2
        assert re.search(message, error := capsys.readouterr().err), (message, error)
        assert not notebook(root).exists()
    source(root).write_text(HEADER + CELLS, encoding="utf-8")
    (root / "lib" / "hello.py").write_text(f"# {os.urandom(600_000).hex()}", encoding="utf-8")
    with pytest.raises(BadInput, match=r"lib/hello\.py \(1,200,002 bytes\), lib/__init__"):
        build.notebook_text(source(root), root)


def test_check_fresh_stale_missing_orphan(root: Path, capsys) -> None:
    def check() -> tuple[int, str]:
        capsys.readouterr()
        return build.main(["--check"], root), capsys.readouterr().out

    code, out = check()
    assert code == 1
    assert "notebooks/01_demo.ipynb is missing" in out
    build.main([], root)
    assert check() == (0, "")
    before = notebook(root).read_bytes()
    source(root).write_text((HEADER + CELLS).replace("*hello*", "*goodbye*"), encoding="utf-8")
    notebook(root).with_name("02_gone.ipynb").write_text("{}")
    code, out = check()
    assert code == 1
    assert '\n-    "Says *hello*."\n+    "Says *goodbye*."\n' in out
    assert "notebooks/02_gone.ipynb has no source notebooks_src/02_gone.py" in out
    assert notebook(root).read_bytes() == before


def run_carrier(cell: str, cwd: Path, code: str) -> str:
    """The carrier cell as `cell` of a plain program, which begins by running it."""
    cwd.mkdir(exist_ok=True)
    mounts = {"TRAINBOOK_KAGGLE_ROOT": str(cwd / "kaggle")}
    environment = {**os.environ, "TMPDIR": str(cwd), "PYTHONPATH": "/other", **mounts}
    command = [sys.executable, "-c", f"import os, sys; cell = sys.stdin.read(); exec(cell)\n{code}"]
    done = subprocess.run(
        command, input=cell, cwd=cwd, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


AGAIN = """
import inspect
import lib.hello
first, times = HOME, {path: path.stat().st_mtime_ns for path in HOME.rglob("*.py")}
(HOME / "lib" / "hello.py").write_text("damaged")
exec(cell)
assert "lib.hello" not in sys.modules
import lib.hello
assert lib.hello.greet("x") == "hello x" and HOME == first
assert sys.path[0] == str(HOME) and sys.path.count(str(HOME)) == 1
assert os.environ["PYTHONPATH"] == os.pathsep.join([str(HOME), "/other"])
assert [path.name for path in times if path.stat().st_mtime_ns != times[path]] == ["hello.py"]
assert inspect.getsource(lib.hello.greet).startswith("def greet")
first.chmod(0o777)  # others can write it
exec(cell)
assert HOME != first and HOME.stat().st_mode & 0o077 == 0
from lib import hello
assert str(HOME) in hello.__file__
"""


def cell_of(root: Path) -> str:
    cells = ["from lib import hello"]
    files = carrier.carried_files(source(root), ["demo"], ["demo"], False, cells, root)
    return carrier.code("01_demo", files, commit="abc")


def test_the_carrier_prints_what_it_carries(root: Path, tmp_path) -> None:
    cell = cell_of(root)
    printed = run_carrier(cell, tmp_path / "alone", "")
    digest = hashlib.sha256(carrier.packed(cell)).hexdigest()
    assert f"\nCarried: version 1, commit abc, sha256 {digest}\n" in printed


MOUNTS = [
    "kaggle/input/tools/trainbook-1-py3-none-any.whl",
    "kaggle/input/datasets/ada/tools/trainbook-1-py3-none-any.whl",
    "trainbook-1-py3-none-any.whl",
    "kaggle/input/datasets/ada/checkout",
]
MOUNTED = {
    "lib/__init__.py": '__version__ = "1"\n',
    "lib/hello.py": HELLO.replace("hello", "mounted"),
    "lib/words.txt": "read by its path",
    "workloads/__init__.py": "",
    "configs/demo.yaml": "a: 2\n",
}
GREET = """
from lib import hello
print(hello.greet("x"), (HOME / "lib/words.txt").read_text(), (HOME / "configs/demo.yaml").read_text())
"""


def mount(place: Path, version: str) -> None:
    """Writes a wheel or a checkout of Trainbook."""
    if place.suffix != ".whl":
        write(place, {**MOUNTED, "lib/__init__.py": f'__version__ = "{version}"\n'})
        write(place, {"trainbook/__init__.py": "", "trainbook/launch/__init__.py": ""})
        return
    place = place.with_name(place.name.replace("-1-", f"-{version}-"))
    place.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(place, "w") as wheel:
        wheel.writestr("trainbook/__init__.py", "")
        for name, text in MOUNTED.items():
            wheel.writestr(f"trainbook/home/{name}", text)


@pytest.mark.parametrize("name", MOUNTS)
def test_a_mounted_library_of_the_same_version_is_preferred(root: Path, tmp_path, name) -> None:
    alone = tmp_path / "alone"
    mount(alone / name, "1")
    printed = run_carrier(cell_of(root), alone, GREET)
    assert f"Trainbook 1, lib: the one of {alone / name}, written to {alone}" in printed
    assert "mounted x read by its path a: 1\n" in printed, "the notebook's configuration"


@pytest.mark.parametrize("name", MOUNTS)
def test_a_mounted_library_of_another_version_is_left_alone(root: Path, tmp_path, name) -> None:
    alone = tmp_path / "alone"
    mount(alone / name, "2")
    printed = run_carrier(cell_of(root), alone, "")
    assert "lib: the one that this notebook carries" in printed


def test_a_commit_of_other_files_leaves_a_notebook_fresh(root: Path, monkeypatch) -> None:
    monkeypatch.setattr(carrier, "commit_of", lambda root: "first")
    build.main([], root)
    assert 'COMMIT = "first"\n' in carrier_cell(notebook(root).read_text("utf-8"))
    monkeypatch.setattr(carrier, "commit_of", lambda root: "second")
    assert build.main(["--check"], root) == 0
    (root / "lib" / "hello.py").write_text("changed = True\n")
    build.main([], root)
    assert 'COMMIT = "second"\n' in carrier_cell(notebook(root).read_text("utf-8"))


def test_the_carrier_takes_a_checkout_repairs_and_avoids_a_folder_that_others_can_write(
    root: Path, tmp_path
) -> None:
    cell = cell_of(root)
    printed = run_carrier(cell, tmp_path / "alone", AGAIN)
    assert printed.count("lib: the one that this notebook carries") == 3
    (root / "lib" / "hello.py").write_text(HELLO.replace("hello", "newer"), encoding="utf-8")
    printed = run_carrier(
        cell, root / "notebooks", "from lib import hello; print(hello.greet('world'))"
    )
    assert f"lib: the one of the checkout {root.resolve()}\n" in printed
    assert printed.endswith("\nnewer world\n")
    assert not list((root / "notebooks").iterdir())
