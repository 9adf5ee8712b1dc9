"""What is checked before quota is spent; every finding that is not ok says what to do."""

import json
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from lib.errors import TrainingFailed
from tests.conftest import ROOT
from tests.notebooks.test_notebooks import PARAMETERS, small_graph
from tests.trainbook.kaggle.stub import KEY
from trainbook.commands import main
from trainbook.kaggle import carried, preflight

KEYS = PARAMETERS["01_graphmer"]["OVERRIDES"]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """01_graphmer as its source, lib and configs give it now."""
    path = tmp_path_factory.mktemp("built") / "01_graphmer.ipynb"
    path.write_text(
        carried.builder().notebook_text(ROOT / "notebooks_src" / "01_graphmer.py"), "utf-8"
    )
    return path


@pytest.fixture(autouse=True)
def not_traced(monkeypatch):
    """Half of a T4, two steps a second, as if a step had been traced, which takes seconds; one test does."""
    chosen = SimpleNamespace(
        micro_batch=8, prediction=SimpleNamespace(peak_bytes=7 * 2**30), expected_seconds=0.5
    )
    plan = SimpleNamespace(chosen=chosen, usable_bytes=14 * 2**30)
    monkeypatch.setattr(preflight.planner, "plan", lambda config, card: plan)


@pytest.fixture
def graph(tmp_path):
    small_graph(tmp_path / "graph")
    return str(tmp_path / "graph")


@pytest.fixture
def edited(tmp_path, built):
    """edited(change) -> the built notebook with its JSON changed, at another place."""

    def make(change):
        notebook = json.loads(built.read_text())
        change(notebook)
        path = tmp_path / built.name
        path.write_text(json.dumps(notebook))
        return path

    return make


def check(path, graph, **overrides):
    """The findings of all sections in one list."""
    sections = preflight.check(path, {**KEYS, **overrides}, graph)
    return [finding for findings in sections.values() for finding in findings]


def named(checks):
    return {finding.name: finding for finding in checks}


def bad(checks):
    return [finding.value for finding in checks if finding.verdict == "bad"]


def test_a_ready_notebook_exits_with_0_and_a_bad_finding_with_1(
    staleness_counts, stub, built, graph, capsys
):
    settings = [f"--set={key}={value}" for key, value in KEYS.items()]
    command = ["kaggle", "preflight", str(built), "--data", graph, *settings]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert out.endswith("all is well.\nReady to push.\n")
    assert "signed in as ada" in out
    assert "30.0 of 30 GPU hours are left" in out
    assert main([*command, "--json", "--set=checkpoint.keep_last=0"]) == 1
    checks = json.loads(capsys.readouterr().out)
    assert checks["verdict"] == "bad", "and nothing but JSON"
    row = {
        "section": "graphmer.yaml",
        "name": "checkpoints",
        "verdict": "bad",
        "advice": "Set it to 1 or more.",
    }
    assert {
        **row,
        "value": "checkpoint.keep_last is 0: there would be nothing to resume from",
    } in checks["checks"]


WASTEFUL = {
    "training.precision": ("bf16", "bf16, which a T4 only emulates"),
    "training.micro_batch_slots": (1, "1 slots cannot be divided among 2 T4s"),
    "checkpoint.keep_last": (10**6, "GB of 20.0 GB"),
}


def add_code(text):
    cell = {
        "cell_type": "code",
        "source": text,
        "metadata": {},
        "outputs": [],
        "execution_count": None,
    }
    return lambda notebook: notebook["cells"].append(cell)


FAILING = [
    (add_code("import bitsandbytes"), "not known to have bitsandbytes"),
    (add_code(f"key = '{KEY}'"), "credential of your environment"),
    (add_code("#" * 1_000_000), "Kaggle has refused 1,000,000"),
    (
        lambda notebook: notebook["metadata"]["kaggle"].update(isGpuEnabled=False),
        "does not ask for a GPU",
    ),
    (add_code(""), "01_graphmer.ipynb is stale"),
]


def test_what_would_waste_quota_or_fail_on_kaggle_is_bad(
    staleness_counts, stub, built, graph, edited
):
    stub.quota_hours = (29.6, 30.0)
    values = bad(check(built, graph, **{key: value for key, (value, _) in WASTEFUL.items()}))
    for sentence in [
        *(sentence for _, sentence in WASTEFUL.values()),
        "0.4 of 30 GPU hours are left this week",
    ]:
        assert any(sentence in value for value in values), sentence
    (Path(graph) / "triples.jsonl").write_text("{")
    for change, sentence in FAILING:
        findings = check(edited(change), graph)
        assert any(sentence in value for value in bad(findings)), sentence
        assert any("triples.jsonl:1" in value for value in bad(findings))
        assert all(finding.advice.strip() for finding in findings if finding.verdict != "ok"), (
            sentence
        )


def test_the_time_is_counted_in_sessions_and_weeks_and_not_without_a_plan(
    stub, built, graph, monkeypatch
):
    time = named(check(built, graph, **{"training.max_steps": 200_000}))["time"]
    assert time.verdict == "warning"
    assert "take 27.8 h, as the planner expects: 3 session(s), 92.6% of a week" in time.value
    failure = TrainingFailed("Traceback:\nValueError: x")
    monkeypatch.setattr(preflight.planner, "plan", mock.Mock(side_effect=failure))
    checks = check(built, graph)
    assert bad(checks) == ["a training step fails: ValueError: x"]
    assert "not known without a plan" in named(checks)["time"].value


IN_STEPS = {
    "training.epochs": "0",
    "training.max_steps": "3600",
    "queue.before_overrides": "{training.epochs: 0, training.max_steps: 720, data.dir: embedded}",
    "data.dir": "ada/scenes",
}


def of(name, settings, *options):
    """The findings of a notebook of this checkout by section, and all of them."""
    sections = preflight.check(ROOT / "notebooks" / f"{name}.ipynb", settings, *options)
    return sections, [finding for findings in sections.values() for finding in findings]


def test_all_runs_of_a_queue_are_counted(stub):
    findings = named(of("03_glacier_finetune", IN_STEPS)[0]["glacier_finetune.yaml"])
    assert (
        "runs: glacier_pretrain-short, glacier_finetune-fold0, " in findings["configuration"].value
    )
    assert findings["time"].value.startswith(
        "6 run(s) take 2.6 h, as the planner expects: 1 session(s), 8.7% of a week's quota"
    )
    assert findings["space"].value.startswith("checkpoints and archive of all runs take at most ")


def test_a_notebook_without_training_needs_no_quota_and_no_data_is_invented(stub, monkeypatch):
    monkeypatch.setattr("lib.prepared.load_task", lambda config: pytest.fail("data was read"))
    found = named(of("02_glacier_pretrain", {})[1])
    assert found["time"].verdict == "warning"
    assert "a length in epochs, the data" in found["time"].value
    monkeypatch.setattr(
        preflight.planner, "plan", lambda config, card: pytest.fail("a step was traced")
    )
    sections, findings = of("07_your_model", {})
    assert not bad(findings)
    assert [finding.verdict for finding in sections["my.yaml"]] == ["warning"]
    assert "written by a cell" in sections["my.yaml"][0].value
    stub.quota_hours = (30.0, 30.0)
    sections, findings = of("00_memory", {})
    assert not bad(findings)
    assert list(sections) == ["Notebook", "Account"]


def test_a_notebook_that_runs_a_command_needs_quota(stub):
    stub.quota_hours = (30.0, 30.0)
    sections, findings = of("09_your_script", {})
    assert bad(findings) == ["0.0 of 30 GPU hours are left this week"]
    assert "it runs a command" in named(sections["Notebook"])["training"].value


def test_what_a_session_downloads_needs_internet(stub):
    settings = {"workload.download": "['https://host.invalid/there']", "training.epochs": "3"}
    found = named(of("02_glacier_pretrain", settings)[1])
    assert found["internet"].verdict == "bad"
    assert found["data"].verdict == "warning"
    assert "the session downloads it from https://host.invalid/there" in found["data"].value
