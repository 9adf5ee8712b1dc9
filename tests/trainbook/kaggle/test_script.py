"""A training command of somebody else's on Kaggle: what is sent, what is refused, and what is checked before."""

import hashlib
import io
import json
import subprocess
import tarfile
import zipfile

import pytest

from lib.errors import BadInput
from trainbook.commands import main
from trainbook.kaggle import carried, repository, wheels
from trainbook.run import sent

NAME = "ada/trainbook-job"
CODE = "ada/trainbook-job-code"
SETTINGS = """
command: [python, train.py, --epochs, "3"]
keep: checkpoints
resume: --resume {newest}
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository of git with a script, a package, a file that is ignored and one that is not tracked."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    files = {
        "train.py": "import pack, torch\n",
        "pack/__init__.py": "",
        ".gitignore": "secret.txt\n",
        "secret.txt": "hidden",
        "job.yaml": SETTINGS,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    git("init", "--quiet")
    git("add", ".")
    (folder / "later.txt").write_text("x")
    return folder


def git(*words):
    subprocess.run(["git", *words], check=True)


def members(content):
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        return {member.name for member in archive.getmembers()}


def test_a_push_uploads_the_tracked_files_and_starts_a_notebook_that_mounts_them(
    stub, project, capsys
):
    assert main(["kaggle", "push", "job.yaml"]) == 0
    out = capsys.readouterr().out
    assert "not sent: later.txt. To send them: git add." in out
    assert f"Version 1 of {NAME} was pushed" in out
    (version,) = stub.datasets[CODE]
    assert version["isPrivate"] is True
    content = version["contents"][sent.ARCHIVE]
    assert members(content) == {".gitignore", "job.yaml", "pack/__init__.py", "train.py"}
    request = stub.sessions[0].request
    assert request["datasetDataSources"] == [CODE]
    assert request["enableInternet"] is False
    assert request["enableGpu"] is True
    assert hashlib.sha256(content).hexdigest() in request["text"]
    assert stub.sessions[0].parameter("SESSION_MINUTES") == 0


def test_unchanged_files_are_uploaded_once_and_changed_ones_again(stub, project):
    for _ in range(2):
        assert main(["kaggle", "push", "job.yaml"]) == 0
        stub.settled()
    assert len(stub.datasets[CODE]) == 1
    (project / "train.py").write_text("import torch\n")
    assert main(["kaggle", "push", "job.yaml", "--set", "newest=5"]) == 0
    assert len(stub.datasets[CODE]) == 2
    assert stub.sessions[2].parameter("OVERRIDES") == {"newest": 5}


def test_a_dry_run_packs_everything_and_sends_nothing(stub, project, monkeypatch, capsys):
    monkeypatch.setattr("trainbook.kaggle.client.importlib.util.find_spec", lambda name: None)
    assert main(["kaggle", "push", "job.yaml", "--dry-run"]) == 0
    assert "First it uploads runs/kaggle/trainbook-job/code as OWNER/trainbook-job-code" in (
        capsys.readouterr().out
    )
    assert stub.calls == []
    built = json.loads((project / "runs/kaggle/trainbook-job/job.ipynb").read_text())
    files = carried.carried_files(built)
    assert "trainbook/run/sent.py" in files
    assert "trainbook/supervised/task.py" not in files
    assert "command:\n- python\n- train.py" in files["configs/job.yaml"]


def test_status_and_fetch_take_its_name_and_a_chain_goes_on_until_it_is_completed(
    stub, project, capsys
):
    reasons = iter(["deadline", "completed"])
    steps = iter([3, 7])
    stub.runner = lambda session: session.summary(step=next(steps), reason=next(reasons))
    assert main(["kaggle", "chain", "job.yaml", "--poll-seconds", "0.05"]) == 0
    assert "Completed at step 7" in capsys.readouterr().out
    first, second = stub.sessions
    assert first.request.get("kernelDataSources", []) == []
    assert second.request["kernelDataSources"] == [NAME]
    assert len(stub.datasets[CODE]) == 1
    assert main(["kaggle", "status", "job.yaml"]) == 0
    assert main(["kaggle", "fetch", "job.yaml"]) == 0
    assert "toy: completed at step 7" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        (".env", "A=1", "a file for credentials"),
        (".env.local", "A=1", "a file for credentials"),
        ("id_rsa", "x", "a file for credentials"),
        ("kaggle.json", "{}", "a file for credentials"),
        ("notes.py", "\nT = 'hf_" + "a" * 34 + "'", "notes.py:2 has what looks like a credential"),
        ("key.txt", "-----BEGIN OPENSSH PRIVATE KEY-----", "key.txt:1 has what looks like"),
        ("with.py", "PASSWORD = 'correct-horse-battery'", "credential of your environment"),
    ],
)
def test_credentials_are_refused_by_name_and_content_before_anything_is_sent(
    stub, project, monkeypatch, name, text, sentence
):
    monkeypatch.setenv("MY_PASSWORD", "correct-horse-battery")
    (project / name).write_text(text)
    git("add", name)
    config = project / "job.yaml"
    with pytest.raises(BadInput, match=sentence):
        repository.read(config, settings_of(config))
    assert main(["kaggle", "push", "job.yaml"]) == 2
    assert stub.count("StartBlobUpload") == 0


def settings_of(config):
    return repository.Settings(command=("python", "train.py"), keep="checkpoints", name="job")


def test_an_example_of_an_environment_is_no_credential(project):
    (project / ".env.example").write_text("TOKEN=")
    git("add", ".env.example")
    found = repository.read(project / "job.yaml", settings_of(project))
    assert ".env.example" in found.files


def test_what_cannot_run_there_is_a_sentence_before_anything_is_sent(
    stub, project, monkeypatch, capsys
):
    git("rm", "--quiet", "--cached", "train.py")
    assert main(["kaggle", "push", "job.yaml"]) == 2
    assert "git add train.py" in capsys.readouterr().err
    git("add", "train.py")
    assert main(["kaggle", "push", "job.yaml", "--set", "newst=5"]) == 2
    assert "Did you mean newest?" in capsys.readouterr().err
    monkeypatch.setattr(repository, "MOST_BYTES", 10)
    assert main(["kaggle", "push", "job.yaml"]) == 2
    said = capsys.readouterr().err
    assert "The largest: job.yaml" in said
    assert main(["notebook", "job.yaml"]) == 2
    assert "trainbook kaggle push job.yaml" in capsys.readouterr().err
    assert stub.count("StartBlobUpload") == 0


def test_without_git_all_but_ignored_and_kept_files_are_sent(tmp_path, monkeypatch):
    folder = tmp_path / "plain"
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    for name in ("train.py", "checkpoints/last.pt", "runs/a", "venv/pyvenv.cfg", "x.log", ".hid"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    (folder / ".gitignore").write_text("*.log\n")
    (folder / "job.yaml").write_text(SETTINGS)
    found = repository.read(folder / "job.yaml", settings_of(folder))
    assert found.files.keys() == {"train.py", "job.yaml"}
    assert not (folder / ".git").exists()


def test_a_preflight_names_imports_that_the_image_lacks_and_what_is_not_sent(stub, project, capsys):
    (project / "train.py").write_text("import einops, pack, rare_thing, torch, os\n")
    assert main(["kaggle", "preflight", "job.yaml"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "not known to have rare_thing" in said
    assert "not sent: later.txt" in said
    assert "checkpoints is carried over; the command gets --resume {newest}" in said
    assert "uses one of 2 cards" in said
    assert "signed in as ada" in said
    assert stub.count("StartBlobUpload") == 0


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder in place of pip's index, with a wheel that needs a package which nobody has."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "tiny_thing-1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_thing.py", "VALUE = 7\n")
        about = "tiny_thing-1.2.dist-info"
        needs = (
            "Requires-Dist: rare-thing>=1\nRequires-Dist: numpy\nRequires-Dist: x; extra == 'a'\n"
        )
        wheel.writestr(
            f"{about}/METADATA", f"Metadata-Version: 2.1\nName: tiny-thing\nVersion: 1.2\n{needs}"
        )
        wheel.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_requirements_travel_as_wheels_whose_hashes_the_notebook_has(stub, project, index, capsys):
    (project / "requirements.txt").write_text("torch>=2\nnumpy\n# a note\ntiny_thing==1.2\n")
    (project / "job.yaml").write_text(f"{SETTINGS}requirements: [requirements.txt]\n")
    git("add", "requirements.txt")
    assert main(["kaggle", "push", "job.yaml"]) == 0
    out = capsys.readouterr().out
    assert "Kaggle's own versions are taken of: torch>=2, numpy." in out
    assert "tiny_thing-1.2-py3-none-any.whl needs rare-thing, not known to be in Kaggle" in out
    contents = stub.datasets[CODE][0]["contents"]
    wheel = contents["tiny_thing-1.2-py3-none-any.whl"]
    assert hashlib.sha256(wheel).hexdigest() in stub.sessions[0].request["text"]


@pytest.mark.parametrize(
    ("requirement", "sentence"),
    [
        ("torch==2.9", "never sent"),
        ("git+https://example.org/a.git", "no package of pip's index"),
        ("not-there==1", "no wheels for Python 3.12"),
    ],
)
def test_a_requirement_that_cannot_travel_is_a_sentence(tmp_path, index, requirement, sentence):
    with pytest.raises(BadInput, match=sentence):
        wheels.download(wheels.wanted([requirement], tmp_path)[0], tmp_path)


def test_inputs_are_mounted_and_a_command_is_a_run_of_that_name(stub, project):
    stub.datasets["bob/pets"] = [{}]
    (project / "job.yaml").write_text(
        f"{SETTINGS}inputs: {{data/pets: bob/pets, data/t: titanic}}\n"
    )
    assert main(["kaggle", "push", "job.yaml"]) == 0
    request = stub.sessions[0].request
    assert request["datasetDataSources"] == [CODE, "bob/pets"]
    assert request["competitionDataSources"] == ["titanic"]
