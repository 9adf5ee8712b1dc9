"""What is looked at before quota is spent; every line says what to do."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lib.__main__ import main
from lib.errors import BadInput, TrainingFailed
from lib.kaggle import image, preflight
from tests.conftest import ROOT
from tests.kaggle.stub import KEY
from tests.notebooks.test_notebooks import PARAMETERS, small_graph

NOTEBOOK = ROOT / "notebooks" / "01_graphmer.ipynb"
KEYS = PARAMETERS["01_graphmer"]["OVERRIDES"]


TRACED = preflight.planner.plan


def not_traced(config, card):
    raise TrainingFailed("A made-up failure.")


@pytest.fixture(autouse=True)
def planned(monkeypatch):
    """The plan as if it had been traced, which takes seconds; one test traces."""
    monkeypatch.setattr(preflight.planner, "plan", not_traced)


@pytest.fixture
def graph(tmp_path):
    small_graph(tmp_path / "graph")
    return str(tmp_path / "graph")


@pytest.fixture
def edited(tmp_path):
    """edited(change) -> the built notebook with its JSON changed, at another place."""

    def make(change):
        notebook = json.loads(NOTEBOOK.read_text())
        change(notebook)
        path = tmp_path / NOTEBOOK.name
        path.write_text(json.dumps(notebook))
        return path

    return make


def lines(path, graph, **overrides):
    urls = overrides.pop("urls", ())
    speed = overrides.pop("speed", 0.0)
    return preflight.check(path, {**KEYS, **overrides}, graph, speed, urls)


def wrong(found):
    return [line.what for line in found if line.verdict == "wrong"]


def test_the_notebook_of_this_checkout_is_ready(stub, graph, capsys):
    settings = [f"--set={key}={value}" for key, value in KEYS.items()]
    assert main(["kaggle", "preflight", "graphmer", "--data", graph, *settings, "--steps-per-second", "1"]) == 0
    out = capsys.readouterr().out
    assert "0 wrong" in out and "Ready to push" in out
    assert "signed in as ada" in out and "30.0 of 30 GPU hours are left" in out
    assert "GPU T4 x2 is asked for, and 2 slots keep 2 cards busy" in out and "fp16 on a T4" in out


def test_every_line_says_what_to_do(stub, graph):
    assert all(line.advice.strip() and line.what.strip() for line in lines(NOTEBOOK, graph))


@pytest.mark.parametrize(
    "overrides, sentence",
    [
        ({"training.precision": "bf16"}, "bf16, which a T4 only emulates"),
        ({"training.micro_batch_slots": 1}, "1 slots cannot be dealt to 2 T4s"),
        ({"checkpoint.keep_last": 0}, "nothing to go on with"),
        ({"checkpoint.keep_last": 10**6}, "GB of 20"),
        ({"session.minutes": 720}, "session.minutes 720 is longer than the 690"),
        ({"training.maximum": 3}, "is refused"),
    ],
)
def test_a_configuration_that_would_waste_quota_is_wrong(stub, graph, overrides, sentence):
    assert any(sentence in what for what in wrong(lines(NOTEBOOK, graph, **overrides)))


def test_data_that_the_task_refuses_is_wrong(stub, graph, tmp_path):
    (tmp_path / "graph" / "triples.jsonl").write_text("{")
    assert any("triples.jsonl:1" in what for what in wrong(lines(NOTEBOOK, graph)))


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
    assert any(sentence in what for what in wrong(lines(edited(change), graph)))


def test_an_import_that_the_table_does_not_know_is_to_be_looked_at(stub, graph, edited):
    found = lines(edited(add_code("import some_package")), graph)
    assert any("some_package" in line.what and line.verdict == "look" for line in found)


@pytest.mark.parametrize("text", ["/kaggle/working", "https://example.org/home/x", "a/data/b", "~/x", "and/or"])
def test_other_paths_are_no_paths_of_one_machine(text):
    assert not preflight._LOCAL_PATH.search(f"open('{text}')")


@pytest.mark.parametrize(
    "speed, verdict, words",
    [
        (1.0, "fine", "10,000 steps at 1 steps/s, as you measured, take 2.8 h: 1 session(s)"),
        (0.1, "look", "take 27.8 h: 3 session(s), 1 week(s)"),
        (0.0, "look", "fit one session from 0.24 steps/s on"),
    ],
)
def test_the_time_is_counted_in_sessions_and_weeks(stub, graph, speed, verdict, words):
    line = next(one for one in lines(NOTEBOOK, graph, speed=speed) if "steps/s" in one.what)
    assert line.verdict == verdict and words in line.what


MEMORY = preflight._memory


def test_the_planner_says_whether_it_fits_and_how_fast_it_may_be(stub, graph, monkeypatch):
    monkeypatch.setattr(preflight, "_memory", MEMORY)
    found = lines(NOTEBOOK, graph, **{"workload.model.hidden": 24})
    assert any("GiB of a T4." in line.what for line in found)
    assert any("as the planner expects" in line.what for line in found)
    uneven = {"workload.model.hidden": 16}  # for 12 heads
    assert any("A training step fails: RuntimeError: shape" in what for what in wrong(lines(NOTEBOOK, graph, **uneven)))
    monkeypatch.setattr(preflight.planner, "plan", lambda config, gpu: (_ for _ in ()).throw(BadInput("Nothing fits.")))
    assert "The step does not fit a T4: Nothing fits." in wrong(lines(NOTEBOOK, graph))


def test_without_an_account_the_browser_is_named(stub, graph, monkeypatch):
    monkeypatch.setattr("lib.kaggle.client.importlib.util.find_spec", lambda name: None)
    last = lines(NOTEBOOK, graph)[-1]
    assert last.verdict == "look" and "The browser needs none of this" in last.advice


def test_an_empty_quota_is_wrong(stub, graph):
    stub.quota_hours = (29.6, 30.0)
    assert "0.4 of 30 GPU hours are left this week." in wrong(lines(NOTEBOOK, graph))


@pytest.mark.parametrize("package", [*image.PACKAGES.values(), image.PYTHON])
def test_every_package_of_the_image_has_a_source_and_a_month(package):
    assert package.source and package.checked.startswith("20") and len(package.checked) == 7


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
        ("/there", "fine", "answers, 1,234 bytes"),
        ("/get-only", "fine", "answers, 3 bytes"),
        ("/gone", "wrong", "answers 404"),
        ("/slow", "wrong", "does not answer in 0.5 s"),
    ],
)
def test_addresses_are_asked_without_downloading(address, path, verdict, words):
    line = preflight.answers(address + path, seconds=0.5)
    assert line.verdict == verdict and words in line.what


@pytest.mark.parametrize("broken", ["http://127.0.0.1:1/x", "http://no.such.host.invalid/x", "http://[bad"])
def test_an_address_that_cannot_be_reached_is_wrong(address, broken):
    assert preflight.answers(broken, seconds=2).verdict == "wrong"


def test_addresses_in_code_need_the_internet_and_links_in_sentences_do_not(address, graph, edited, monkeypatch):
    monkeypatch.setattr(preflight, "_account", lambda: [])
    code = f"# see {address}/a-page\nurl = '{address}/there'"
    found = lines(edited(add_code(code)), graph)
    assert any("the notebook's internet is off" in what for what in wrong(found))
    assert [line.what for line in found if address in line.what] == [f"{address}/there answers, 1,234 bytes."]
