"""The table of environment variables is the one place that names them."""

from lib.config import environment
from tests.conftest import ROOT


def test_every_variable_is_named_in_the_table_alone():
    values = [value for name, value in vars(environment).items() if name.isupper()]
    assert len(set(values)) == len(values) == 9
    others = [path for path in (ROOT / "lib").rglob("*.py") if path.name != "environment.py"]
    assert not [path for path in others if '"TRAINBOOK_' in path.read_text()]
