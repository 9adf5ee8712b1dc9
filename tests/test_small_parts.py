"""Memory, progress, dependencies, the task's contract and the notebook's parameters."""

import builtins
import importlib.util
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from lib import dependencies, memory, notebook, platform, progress, widgets
from lib import task as tasks
from lib.errors import BadInput
from tests.conftest import ROOT
from tests.toy import Net

# --- memory -----------------------------------------------------------------------------------------------------------


def test_precision_on_a_cpu():
    cpu = torch.device("cpu")
    assert memory.precision("auto", cpu) == "fp32" and memory.precision("bf16", cpu) == "bf16"
    with pytest.raises(BadInput, match="fp16, but there is no GPU"):
        memory.precision("fp16", cpu)


@pytest.mark.parametrize("capability, best", [((7, 5), "fp16"), ((6, 0), "fp16"), ((8, 0), "bf16"), ((9, 0), "bf16")])
def test_precision_goes_by_the_hardware_and_not_by_emulation(monkeypatch, capability, best):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *a, **k: True)  # what a T4 says
    cuda = torch.device("cuda", 0)
    assert memory.precision("auto", cuda) == best and memory.precision("fp32", cuda) == "fp32"
    if best == "fp16":
        with pytest.raises(BadInput, match="bf16, which a card lacks"):
            memory.precision("bf16", cuda)


def test_check_memory_names_ram_and_says_that_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    text = memory.check_memory()
    assert text.startswith("RAM: ") and "this process" in text and "No GPU" in text


@pytest.mark.parametrize("share, words", [(0.2, "free to start"), (0.7, "small run"), (0.9, "lower data.num_workers")])
def test_the_verdict_follows_the_share(share, words):
    total = 100 * memory.GIB
    assert words in memory._verdict(memory.Reading("RAM", int(share * total), total))


def test_recomputation_needs_blocks():
    with pytest.raises(BadInput, match="no `blocks`"):
        memory.recompute(nn.Linear(2, 2), "all")
    assert memory.recompute(nn.Linear(2, 2), 0) == 0


def test_recomputation_keeps_fewer_activations():
    def saved(layers):
        torch.manual_seed(0)
        model = Net(*[nn.Sequential(nn.Linear(4, 64), nn.GELU(), nn.Linear(64, 4)) for _ in range(6)])
        memory.recompute(model, layers)
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            out = model(torch.randn(32, 4, requires_grad=True))
        out.sum().backward()
        return sum(sizes)

    none, some, everything = saved(0), saved(3), saved("all")
    assert everything < some < none


# --- progress ---------------------------------------------------------------------------------------------------------


def test_a_log_file_gets_plain_lines_and_not_one_for_each_step(capsys):
    shown = progress.choose()
    assert isinstance(shown, progress.Plain)  # pytest's stdout is no terminal
    for step in range(1, 1001):
        shown.update(step, 1000, "loss 1.0")
    shown.close()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("1/1,000 (0%)") and lines[-1].startswith("1,000/1,000 (100%)") and len(lines) < 5
    assert not any("\r" in line or "\x1b" in line for line in lines)


def test_a_terminal_gets_one_line_that_is_written_over(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    shown = progress.choose()
    assert isinstance(shown, progress.Terminal)
    shown.update(1, 4, "loss 1.0")
    shown.note("kept")
    shown.update(4, 4, "loss 0.5")
    shown.close()
    out = capsys.readouterr().out
    assert "[######..................] 1/4 (25%)" in out and "[########################] 4/4 (100%)" in out
    assert out.count("\n") == 2


def test_a_notebook_gets_one_display_that_is_updated(monkeypatch):
    updates = []
    handle = SimpleNamespace(update=lambda shown: updates.append(str(shown)))
    monkeypatch.setattr("IPython.display.display", lambda shown, display_id: handle)
    monkeypatch.setattr(progress.Notebook, "interval", 0.0)
    shown = progress.Notebook()
    for step in range(1, 4):
        shown.update(step, 3, "")
    assert len(updates) == 2


def test_the_form_follows_the_place(monkeypatch):
    monkeypatch.setattr(platform, "in_notebook", lambda: True)
    assert isinstance(progress.choose(), progress.Notebook)
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    assert isinstance(progress.choose(), progress.Plain)


# --- dependencies -----------------------------------------------------------------------------------------------------


def missing(monkeypatch, *names):
    find = importlib.util.find_spec
    monkeypatch.setattr(dependencies.importlib.util, "find_spec", lambda n: None if n in names else find(n))


def test_everything_there_installs_nothing(monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("nothing should be installed"))
    assert dependencies.ensure() == "8 packages are there."


def test_torch_is_never_installed(monkeypatch):
    missing(monkeypatch, "torch", "yaml")
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("nothing should be installed"))
    with pytest.raises(BadInput, match="PyTorch is missing, and this notebook never installs it"):
        dependencies.ensure()


@pytest.mark.parametrize("works", [True, False])
def test_what_is_missing_is_installed_or_named(monkeypatch, works):
    missing(monkeypatch, "tokenizers", "yaml")
    commands = []
    done = SimpleNamespace(returncode=0 if works else 1)
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append(command) or done)
    if works:
        assert "installed now: yaml, tokenizers" in dependencies.ensure()
    else:
        with pytest.raises(BadInput, match="could not be installed: PyYAML, tokenizers. Switch the internet on"):
            dependencies.ensure()
    assert commands[0][-2:] == ["PyYAML", "tokenizers"] and "torch" not in commands[0]


def test_the_check_of_dependencies_needs_none_of_them():
    code = "import sys; from lib import dependencies as d; print(sorted(m for m in sys.modules if m in d.PACKAGES))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- the task's contract ----------------------------------------------------------------------------------------------


def test_tasks_are_found_by_name_and_by_file():
    assert tasks.find("graphmer").__name__ == "Graphmer"
    assert tasks.find(f"{ROOT / 'tests' / 'toy.py'}:Toy").__name__ == "Toy"


@pytest.mark.parametrize(
    "name, sentence",
    [
        ("nothing", "There is no task 'nothing'. Known tasks: .*graphmer"),
        ("nowhere.py:Task", "The task file nowhere.py does not exist"),
        (f"{ROOT / 'tests' / 'toy.py'}:Nothing", "has no class Nothing that derives from lib.task.Task"),
    ],
)
def test_a_task_that_is_not_there_is_said(name, sentence):
    with pytest.raises(BadInput, match=sentence):
        tasks.find(name)


def test_imports_point_downwards():
    """The order of docs/design.md: a module imports only what stands to its right."""
    order = [
        "__main__", "kaggle", "panel", "widgets", "notebook", "queue", "prediction", "plan_html", "plan_file",
        "rehearsal", "doctor", "smoke", "launch", "planner", "torchrun", "profiles", "trainer", "summation", "state",
        "sampler", "events", "meter", "data", "optimization", "outputs", "metrics", "progress", "session", "identity",
        "ema", "weights", "memory", "machine", "saver", "retention", "checkpoint", "files", "task", "sharding",
        "ranks", "dependencies", "platform", "config", "strict", "errors", "__init__",
    ]  # fmt: skip
    import ast

    lib = ROOT / "lib"
    for path in sorted([*lib.glob("*.py"), *lib.glob("planner/*.py"), *lib.glob("kaggle/*.py")]):
        module = path.stem if path.parent == lib else path.parent.name
        assert module in order, f"{path.name} has no place in the order"
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lib":
                names = [a.name for a in node.names] if node.module == "lib" else [node.module.split(".")[1]]
                for name in names:
                    inside = name == module and path.parent != lib
                    assert inside or order.index(name) > order.index(module), f"{path.name} imports lib.{name}"


def test_tasks_import_only_what_is_theirs():
    import ast

    allowed = {"data", "task", "config", "platform", "errors", "tasks"}
    for path in sorted((ROOT / "lib" / "tasks").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lib":
                names = {a.name for a in node.names} if node.module == "lib" else {node.module.split(".")[1]}
                assert names <= allowed, f"{path} imports {names - allowed}"


# --- the notebook's parameters ----------------------------------------------------------------------------------------

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


def test_every_parameter_reaches_the_configuration(tmp_path):
    given = {
        "CONFIG": "configs/graphmer_small.yaml", "DATA_DIR": "a", "OUTPUT_DIR": "b", "SMOKE_STEPS": 3, "MAX_STEPS": 4,
        "SESSION_MINUTES": 5.5, "OVERRIDES": {"optimizer.lr": 0.5}, "RESUME_FROM": "c",
    }  # fmt: skip
    config = notebook.configure("graphmer", ROOT, given)
    assert (config.data.dir, config.output_dir, config.run.resume_from) == ("a", "b", "c")
    assert (config.training.smoke_steps, config.training.max_steps, config.session.minutes) == (3, 4, 5.5)
    assert config.optimizer.lr == 0.5


def test_the_memory_panel_prints_where_there_is_no_live_kernel(capsys):
    assert widgets.memory_panel() is None
    assert "RAM: " in capsys.readouterr().out


def test_the_memory_panel_measures_again_when_its_buttons_are_pressed(monkeypatch, capsys):
    monkeypatch.setattr(platform, "in_notebook", lambda: True)
    readings = iter(["before", "checked", "cleared"])
    monkeypatch.setattr(memory, "check_memory", lambda: next(readings))
    panel = widgets.memory_panel()
    (check, clear), text = panel.children[0].children, panel.children[1]
    assert capsys.readouterr().out == "before\n" and text.layout.display == "none"
    check.click()
    assert text.value == "checked" and text.layout.display == ""
    clear.click()
    assert text.value == "cleared"


def test_the_memory_panel_prints_where_widgets_are_missing(monkeypatch, capsys):
    monkeypatch.setattr(platform, "in_notebook", lambda: True)
    real = builtins.__import__

    def without(name, *rest, **more):
        if name == "ipywidgets":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    assert widgets.memory_panel() is None
    assert "RAM: " in capsys.readouterr().out


def test_an_unfinished_run_says_what_is_left_and_a_finished_one_compares():
    text = notebook.compare({"reason": "deadline", "step": 40, "max_steps": 100})
    assert "60 steps left" in text
    text = notebook.compare({"reason": "completed", "metrics": {"mrr": 0.5}, "baseline": {"mrr": 0.25}})
    assert "0.250     0.500  +0.250" in text
