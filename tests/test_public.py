"""The names that `from trainbook import ...` gives: few, documented, and the old addresses go on working."""

import ast
import inspect
import subprocess
import sys

import pytest

import trainbook
from docs import public
from lib.task import loading
from tests.conftest import ROOT

MOST_NAMES = 25
OLD = """
from lib.config import option
from lib.supervised import Supervised

class Old(Supervised):
    pass
"""
NEW = OLD.replace("lib.config", "trainbook").replace("lib.supervised", "trainbook")


def test_the_list_is_short_and_each_name_is_that_of_its_module():
    assert len(trainbook.PUBLIC) <= MOST_NAMES
    assert set(trainbook.__all__) == {*trainbook.PUBLIC, "HOME"}
    for name in trainbook.PUBLIC:
        assert getattr(trainbook, name) is not None


def test_type_checkers_see_the_same_names_from_the_same_modules():
    tree = ast.parse((ROOT / "trainbook" / "__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {}
    for node in block.body:
        seen |= {alias.name: node.module for alias in node.names}
    assert seen == trainbook.PUBLIC


@pytest.mark.parametrize("name", trainbook.PUBLIC)
def test_each_name_is_documented(name):
    value = getattr(trainbook, name)
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        assert name in public.CONSTANTS
        return
    text = inspect.getdoc(value) or ""
    assert len(text.split()) >= 5
    assert name in (ROOT / "docs" / "names.md").read_text()


def test_an_unknown_name_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ImportError, match="supervize"):
        exec("from trainbook import supervize")
    with pytest.raises(AttributeError, match="its names are .*Supervised"):
        trainbook.__getattr__("supervize")


def test_importing_trainbook_waits_for_no_package():
    code = "import trainbook, sys; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


ADVICE = (
    "my_task.py imports lib.config.option, lib.supervised.Supervised. "
    "The newer address: from trainbook import option, Supervised.\n"
)


@pytest.mark.parametrize(("code", "advice"), [(OLD, ADVICE), (NEW, "")], ids=["old", "new"])
def test_an_old_address_goes_on_working_with_one_line_of_advice(tmp_path, capsys, code, advice):
    file = tmp_path / "my_task.py"
    file.write_text(code)
    task = loading.find_task(f"{file}:Old")
    assert issubclass(task, trainbook.Supervised)
    assert capsys.readouterr().out == advice
