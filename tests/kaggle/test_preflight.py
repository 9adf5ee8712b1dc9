"""What is checked before quota is spent; every finding that is not ok says what to do."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from lib import checkpoint, launch
from lib.__main__ import main
from lib.errors import BadInput, TrainingFailed
from lib.kaggle import preflight
from tests.conftest import ROOT
from tests.kaggle.stub import KEY
from tests.notebooks.test_notebooks import PARAMETERS, small_graph

KEYS = PARAMETERS["01_graphmer"]["OVERRIDES"]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """01_graphmer as its source, lib and configs give it now."""
    path = tmp_path_factory.mktemp("built") / "01_graphmer.ipynb"
    path.write_text(preflight.builder().notebook_text(ROOT / "notebooks_src" / "01_graphmer.py"), "utf-8")
    return path


TRACED = preflight.planner.plan


def planned_for_a_t4(config, card):
    """A plan as if it had been traced: half of a T4, two steps a second."""
    chosen = SimpleNamespace(micro_batch=8, prediction=SimpleNamespace(peak_bytes=7 * 2**30), expected_seconds=0.5)
    return SimpleNamespace(chosen=chosen, usable_bytes=14 * 2**30)


@pytest.fixture(autouse=True)
def not_traced(monkeypatch):
    """Tracing takes seconds; one test does."""
    monkeypatch.setattr(preflight.planner, "plan", planned_for_a_t4)


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
    """The findings of all sections in one list; `urls` and `speed` are options of the command."""
    urls, speed = overrides.pop("urls", ()), overrides.pop("speed", 1.0)
    sections = preflight.check(path, {**KEYS, **overrides}, graph, speed, urls)
    return [finding for findings in sections.values() for finding in findings]


def bad(checks):
    return [finding.value for finding in checks if finding.verdict == "bad"]


def command(built, graph, *options):
    settings = [f"--set={key}={value}" for key, value in KEYS.items()]
    given = [str(built), "--data", graph, *settings, "--steps-per-second", "1"]
    return main(["kaggle", "preflight", *given, *options])


def test_the_notebook_of_this_checkout_is_ready(stub, built, graph, capsys):
    assert command(built, graph) == 0
    out = capsys.readouterr().out
    assert out.endswith("all is well.\nReady to push.\n")
    assert "signed in as ada" in out and "30.0 of 30 GPU hours are left" in out
    assert "T4 x2 is chosen, and 2 slots keep 2 cards busy" in out and "fp16 on a T4" in out


def test_as_json_it_is_nothing_but_json_and_what_is_bad_decides_the_exit_code(stub, built, graph, capsys):
    assert command(built, graph, "--json") == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "ok"
    assert command(built, graph, "--json", "--set=checkpoint.keep_last=0") == 1
    checks = json.loads(capsys.readouterr().out)
    assert checks["verdict"] == "bad"
    row = {"section": "graphmer.yaml", "name": "checkpoints", "verdict": "bad", "advice": "Set it to 1 or more."}
    assert {**row, "value": "checkpoint.keep_last is 0: there would be nothing to resume from"} in checks["checks"]
    assert command(built, graph, "--set=checkpoint.keep_last=0") == 1
    assert "Ready to push" not in capsys.readouterr().out


def test_every_finding_that_is_not_ok_says_what_to_do(stub, graph, edited):
    checks = check(edited(add_code("import bitsandbytes, some_package; open('/home/ada/x')")), graph, speed=0.1)
    assert all(finding.value for finding in checks) and len(bad(checks)) >= 3
    assert all(finding.advice.strip() for finding in checks if finding.verdict != "ok")


@pytest.mark.parametrize(
    "overrides, sentence",
    [
        ({"training.precision": "bf16"}, "bf16, which a T4 only emulates"),
        ({"training.micro_batch_slots": 1}, "1 slots cannot be divided among 2 T4s"),
        ({"checkpoint.keep_last": 0}, "nothing to resume from"),
        ({"checkpoint.keep_last": 10**6}, "GB of 20.0 GB"),
        ({"session.minutes": 720}, "session.minutes 720 is longer than the 690"),
        ({"training.maximum": 3}, "is refused"),
    ],
)
def test_a_configuration_that_would_waste_quota_is_wrong(stub, built, graph, overrides, sentence):
    assert any(sentence in value for value in bad(check(built, graph, **overrides)))


def test_data_that_the_task_refuses_is_wrong(stub, built, graph, tmp_path):
    (tmp_path / "graph" / "triples.jsonl").write_text("{")
    assert any("triples.jsonl:1" in value for value in bad(check(built, graph)))


def cell(notebook, tag):
    return next(one for one in notebook["cells"] if tag in one["metadata"].get("tags", []))


def add_code(text):
    return lambda notebook: notebook["cells"].append(
        {"cell_type": "code", "source": text, "metadata": {}, "outputs": [], "execution_count": None}
    )


@pytest.mark.parametrize(
    "change, sentence",
    [
        (add_code("x = 1"), "is not what its source, lib and configs would give"),
        (add_code("open('/home/ada/data.csv')"), "/home/ada/data.csv in the notebook"),
        (add_code("open(r'C:\\Users\\ada\\data.csv')"), "C:\\Users\\ada\\data.csv in the notebook"),
        (add_code("import bitsandbytes"), "Kaggle's image lacks bitsandbytes"),
        (add_code(f"key = '{KEY}'"), "credential of your environment"),
        (add_code("#" * 1_000_000), "Kaggle has refused 1,000,000"),
        (lambda notebook: cell(notebook, "carrier").update(source=""), "does not carry lib"),
        (lambda notebook: notebook["metadata"]["kaggle"].update(isGpuEnabled=False), "does not ask for a GPU"),
    ],
)
def test_a_notebook_that_would_fail_on_kaggle_is_wrong(stub, graph, edited, change, sentence):
    assert any(sentence in value for value in bad(check(edited(change), graph)))


def test_an_import_that_the_table_does_not_know_is_to_be_looked_at(stub, graph, edited):
    checks = check(edited(add_code("import some_package")), graph)
    assert any("some_package" in finding.value and finding.verdict == "warning" for finding in checks)


@pytest.mark.parametrize("text", ["/kaggle/working", "https://example.org/home/x", "a/data/b", "~/x", "and/or"])
def test_other_paths_are_no_paths_of_one_machine(text):
    assert not preflight._LOCAL_PATH.search(f"open('{text}')")


@pytest.mark.parametrize(
    "speed, verdict, words",
    [
        (1.0, "ok", "10,000 steps at 1 steps/s, as you measured, take 2.8 h: 1 session(s)"),
        (0.1, "warning", "take 27.8 h: 3 session(s), 1 week(s)"),
        (0.0, "ok", "10,000 steps at 2 steps/s, as the planner expects, take 1.4 h: 1 session(s), 1 week(s)"),
    ],
)
def test_the_time_is_counted_in_sessions_and_weeks(stub, built, graph, speed, verdict, words):
    finding = next(one for one in check(built, graph, speed=speed) if one.name == "time")
    assert finding.verdict == verdict and words in finding.value


def test_the_planner_says_whether_it_fits_and_how_fast_it_may_be(stub, built, graph, monkeypatch):
    monkeypatch.setattr(preflight.planner, "plan", TRACED)
    checks = check(built, graph, speed=0.0, **{"workload.model.hidden": 24})
    assert any("GiB of a T4" in finding.value for finding in checks)
    assert any("as the planner expects" in finding.value for finding in checks)
    uneven = {"workload.model.hidden": 16}  # for 12 heads
    assert any("a training step fails: RuntimeError: shape" in value for value in bad(check(built, graph, **uneven)))


@pytest.mark.parametrize(
    "error, words",
    [
        (BadInput("Nothing fits."), "the step does not fit a T4: Nothing fits."),
        (TrainingFailed("Traceback:\nValueError: x"), "a training step fails: ValueError: x"),
    ],
)
def test_without_a_plan_the_speed_is_not_known_and_that_is_bad(stub, built, graph, monkeypatch, error, words):
    def refuse(config, card):
        raise error

    monkeypatch.setattr(preflight.planner, "plan", refuse)
    checks = check(built, graph, speed=0.0)
    assert bad(checks) == [words]
    time = next(finding for finding in checks if finding.name == "time")
    assert time.verdict == "warning" and "fit one session from 0.24 steps/s on; the speed is not known" in time.value


@pytest.mark.parametrize("lightweight", [False, True])
@pytest.mark.parametrize("ema_decay", [0.0, 0.9])
def test_the_bytes_that_are_counted_are_those_that_a_run_saves(toy, tmp_path, lightweight, ema_decay):
    overrides = {"training.ema_decay": ema_decay, "checkpoint.lightweight": lightweight, "training.max_steps": 3}
    run = launch.prepare(toy(overrides))
    counted = preflight.saved_bytes(run)
    launch.train(run)
    kinds = ("checkpoints", "best")
    saved = [next((tmp_path / "runs" / "toy" / kind).glob("step-*")) for kind in kinds]
    assert counted == tuple(tensor_bytes(folder) for folder in saved)


def tensor_bytes(folder):
    tensors = checkpoint.load(folder).tensors.values()
    return sum(value.numel() * value.element_size() for group in tensors for value in group.values())


def test_without_an_account_the_browser_is_named(stub, built, graph, monkeypatch):
    monkeypatch.setattr("lib.kaggle.client.importlib.util.find_spec", lambda name: None)
    last = check(built, graph)[-1]
    assert last.verdict == "warning" and "The browser needs none of this" in last.advice


def test_an_empty_quota_is_wrong(stub, built, graph):
    stub.quota_hours = (29.6, 30.0)
    assert "0.4 of 30 GPU hours are left this week" in bad(check(built, graph))


# --- addresses --------------------------------------------------------------------------------------------------------


class Files(BaseHTTPRequestHandler):
    def do_HEAD(self):
        if self.path == "/slow":
            time.sleep(3)
        code = {"/there": 200, "/get-only": 405}.get(self.path, 404)
        self.send_response(code)
        self.send_header("Content-Length", "1234")
        self.end_headers()

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"abc")

    def log_message(self, *arguments):
        pass


@pytest.fixture
def address(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Files)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    "path, verdict, words",
    [
        ("/there", "ok", "answers, 1,234 bytes"),
        ("/get-only", "ok", "answers, 3 bytes"),
        ("/gone", "bad", "answers 404"),
        ("/slow", "bad", "does not answer in 0.5 s"),
    ],
)
def test_addresses_are_asked_without_downloading(address, path, verdict, words):
    finding = preflight.check_address(address + path, seconds=0.5)
    assert finding.verdict == verdict and words in finding.value


@pytest.mark.parametrize("broken", ["http://127.0.0.1:1/x", "http://no.such.host.invalid/x", "http://[bad"])
def test_an_address_that_cannot_be_reached_is_wrong(address, broken):
    assert preflight.check_address(broken, seconds=2).verdict == "bad"


def test_addresses_in_code_need_the_internet_and_links_in_sentences_do_not(address, graph, edited):
    code = f"# see {address}/a-page\nurl = '{address}/there'"
    checks = check(edited(add_code(code)), graph)
    assert any("the notebook's internet is off" in value for value in bad(checks))
    assert [f.value for f in checks if address in f.value] == [f"{address}/there answers, 1,234 bytes"]
