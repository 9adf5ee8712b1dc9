"""The parameters cell of a training notebook, and the comparison at its end."""

import difflib
import sys
import types

import pytest
import torch

from lib.errors import BadInput
from tests.conftest import ROOT
from trainbook import launch, notebook

EMPTY = {
    "CONFIG": "", "DATA_DIR": "", "OUTPUT_DIR": "", "SMOKE_STEPS": 0, "MAX_STEPS": 0, "SESSION_MINUTES": 0,
    "OVERRIDES": {}, "RESUME_FROM": "",
}  # fmt: skip


def test_empty_parameters_take_the_size_that_fits_and_say_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert notebook.configure("graphmer", ROOT, EMPTY).run.name == "graphmer_small"
    assert "there is no GPU, so this is the small size" in capsys.readouterr().out
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert notebook.configure("graphmer", ROOT, EMPTY).run.name == "graphmer"


def test_every_parameter_reaches_the_configuration_and_a_queue_is_refused_with_its_command():
    given = {
        "CONFIG": "configs/graphmer_small.yaml", "DATA_DIR": "a", "OUTPUT_DIR": "b", "SMOKE_STEPS": 3, "MAX_STEPS": 4,
        "SESSION_MINUTES": 5.5, "OVERRIDES": {"optimizer.lr": 0.5}, "RESUME_FROM": "c",
    }  # fmt: skip
    config = notebook.configure("graphmer", ROOT, given)
    assert config.data.dir == "a"
    assert config.output_dir == "b"
    assert config.run.resume_from == "c"
    assert config.training.smoke_steps == 3
    assert config.training.max_steps == 4
    assert config.session.minutes == 5.5
    assert config.optimizer.lr == 0.5
    given = {**EMPTY, "CONFIG": "configs/graphmer_small.yaml", "OVERRIDES": {"queue.seeds": [1, 2]}}
    with pytest.raises(
        BadInput, match=r"trains one run[\s\S]*-m trainbook.command train .*graphmer_small.yaml"
    ):
        notebook.configure("graphmer", ROOT, given)


@pytest.mark.parametrize(
    "text", ['{"optimizer.lr": 0.5}', "{optimizer.lr: 0.5}", "{'optimizer.lr': 0.5}"]
)
def test_overrides_that_papermill_made_a_text_of_are_read(text):
    given = {**EMPTY, "CONFIG": "configs/graphmer_small.yaml", "OVERRIDES": text}
    assert notebook.configure("graphmer", ROOT, given).optimizer.lr == 0.5


@pytest.mark.parametrize("text", ["optimizer.lr=0.5", "[1, 2]", "{", 3])
def test_overrides_that_are_no_dict_are_refused_in_a_sentence(text):
    with pytest.raises(BadInput, match="OVERRIDES is .*, no dict. Write {"):
        notebook.configure("graphmer", ROOT, {**EMPTY, "OVERRIDES": text})


def test_what_is_shown_in_a_notebook_is_html_whose_style_is_no_text(monkeypatch):
    from IPython import display
    from markupsafe import Markup

    shown = []
    monkeypatch.setattr(notebook.platform, "in_notebook", lambda: True)
    monkeypatch.setattr(display, "display", lambda data, raw: shown.append(data["text/html"]))
    notebook.show("a plan", Markup("<table></table>"))
    notebook.show("a < b")
    assert all(html.startswith("<style>") and "&lt;style" not in html for html in shown)
    assert len(shown) == 2
    assert "<table>" in shown[0]
    assert "a &lt; b" in shown[1]


def test_thousands_of_edited_lines_are_compared_line_by_line(tmp_path, monkeypatch):
    monkeypatch.delattr(difflib, "ndiff")  # which compares every pair of lines, letter by letter
    for name, change in (("old", ""), ("new", "  # edited")):
        (tmp_path / name).mkdir()
        lines = "".join(f"value_{n} = compute({n}, {n + 1}){change}\n" for n in range(4000))
        (tmp_path / name / "mine.py").write_text(lines)
    text = notebook._edit(tmp_path / "old", tmp_path / "new")
    assert text == "code: - -> # edited and 3999 more lines"


def test_the_newest_cell_of_the_class_becomes_the_file_that_the_configuration_names(
    tmp_path, monkeypatch
):
    cells = ["", "class A:\n    x = 1\n", "class A:\n    x = 2\n", "class B:\n    pass"]
    monkeypatch.setitem(sys.modules, "__main__", types.SimpleNamespace(In=cells))
    notebook.save_cells("\ntask: mine.py:A\nseed: 3\n", tmp_path / "configs" / "my.yaml")
    assert (tmp_path / "configs" / "mine.py").read_text() == "class A:\n    x = 2\n"
    assert (tmp_path / "configs" / "my.yaml").read_text() == "task: mine.py:A\nseed: 3\n"
    with pytest.raises(BadInput, match="the class C.* Classes of cells: A, B. Run t"):
        notebook.save_cells("task: mine.py:C", tmp_path / "other" / "my.yaml")
    notebook.save_cells("task: competition\n", tmp_path / "third" / "my.yaml")
    assert [path.name for path in (tmp_path / "third").iterdir()] == ["my.yaml"]


def test_a_plan_that_fails_in_a_users_code_is_a_warning_with_its_line(toy, tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "from tests import toy\n\n\nclass Mine(toy.Toy):\n"
        "    def example_batch(self, size, device):\n        raise ValueError('no batch')\n"
    )
    run = launch.prepare(toy({"task": f"{tmp_path}/mine.py:Mine"}))
    assert notebook.plan(run) is None
    said = capsys.readouterr().out
    assert "Nothing is planned." in said
    assert "no batch (mine.py:6: raise ValueError" in said
    assert len(said.splitlines()) == 2
