"""A small server on loopback that imitates the parts of Kaggle's API that the project uses.

The real client reaches it as a proxy (KAGGLE_API_ENVIRONMENT=LOCALHOST, HTTP_PROXY=here), so every request that it
makes in a test ends here. A "session" is a function of the test that runs in a thread and leaves files in a folder.
"""

import io
import json
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from unittest import mock
from urllib.parse import quote, unquote, urlsplit

import torch

from lib import checkpoint
from trainbook.outputs import packing

# Commands of the client that lib does not call: it builds the parsers of all of them at each start.
OTHERS = ("competitions", "models", "files", "forums", "benchmarks", "auth")
KEY = "stub-key-0123456789abcdef"  # a made-up credential; no test may find it in an output
PAGE = 3  # files of a page, however many are asked for
ACTIVE = ("QUEUED", "RUNNING")
MESSAGES = {
    401: "Unauthenticated", 403: "Permission 'kernels.get' was denied", 404: "Not found", 409: "Conflict",
    429: "Too many requests", 503: "The service is currently unavailable.",
}  # fmt: skip


@dataclass
class Session:
    """One version of a notebook and its run. `mounts`: folder below /kaggle/input -> what lies there."""

    version: int
    request: dict
    working: Path
    mounts: dict[str, Path]
    status: str = "QUEUED"
    failure: str = ""
    log: list[dict] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.log.append({"stream_name": "stdout", "time": float(len(self.log)), "data": text})

    def parameter(self, name: str) -> object:
        """The value of an injected parameter, as the notebook would see it."""
        values: dict = {}
        for cell in json.loads(self.request["text"])["cells"]:
            if {"parameters", "injected-parameters"} & set(cell["metadata"].get("tags", [])):
                exec(cell["source"], values)
        return values[name]

    def summary(self, **facts: object) -> None:
        """Leaves a run's summary.json and metrics.csv, as a notebook does."""
        run = self.working / "toy"
        run.mkdir(parents=True, exist_ok=True)
        (run / "summary.json").write_text(
            json.dumps({"run": "toy", "reason": "deadline", "max_steps": 100, **facts})
        )
        (run / "metrics.csv").write_text(
            f"step,split,loss,elapsed_seconds\n{facts['step']},train,0.5,7200\n"
        )


def leaves_results(session: Session, step: int = 12, reason: str = "completed") -> None:
    """What a notebook leaves: run folder, best weights with their manifest, archive."""
    session.say("done\n")
    session.summary(step=step, reason=reason, metrics={"rmse": 0.5}, baseline={"rmse": 1.0})
    run = session.working / "toy"
    (run / "config.yaml").write_text("task: toy\n")
    (run / "plots").mkdir()
    (run / "plots" / "metrics.png").write_bytes(b"png")
    checkpoint.save(run / "best", step, {"model": {"w": torch.zeros(4)}}, {"step": step})
    checkpoint.save(run / "checkpoints", step, {"model": {"w": torch.zeros(4)}}, {"step": step})
    packing.package(session.working)


class Stub:
    """The state of the imitated service, and the knobs of a test."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.calls: list[tuple[str, dict]] = []
        self.sessions: list[Session] = []
        self.runner: Callable[[Session], None] = lambda session: None  # what a session does
        self.overlaps = 0  # pushes that came while a session was active
        self.refuse_push = ""  # the words of a refusal, with which the client still exits 0
        self.delay: dict[str, float] = {}  # seconds before the answer to a method
        self.stale = 0  # answers about the status that are still those of the session before
        self.datasets: dict[str, list[dict]] = {}  # "owner/slug" -> versions, as requested
        self.uploads: dict[str, SimpleNamespace] = {}  # blobs on their way, by their tokens
        self.states: list[str] = []  # of a data set, in the next answers; then it is ready
        self.competitions = {"titanic"}  # whose rules were accepted
        self.submissions: list[dict] = []  # newest first, as the service lists them
        self.fail_uploads = 0  # uploads that are answered with an error that is not to be repeated
        self.quota_hours: tuple[float, float] | None = (0.0, 30.0)  # used, total
        self.stray_file = ""  # a name that an output claims to hold, leading out of the folder
        self.streams = 0  # requests for a log that grows
        self.nested = False  # whether an error comes as {"error": {"code", "message"}}, else as {"code", "message"}
        self.failures: dict[
            str, list[int]
        ] = {}  # method -> HTTP codes of its next answers; 200 is an answer

    def save_kernel(self, body: dict) -> dict:
        if self.refuse_push:
            return {"error": self.refuse_push}
        datasets = body.get("datasetDataSources", [])
        unknown = [name for name in datasets if name not in self.datasets or self.states]
        competitions = body.get("competitionDataSources", [])
        refused = [name for name in competitions if name not in self.competitions]
        self.overlaps += any(session.status in ACTIVE for session in self.sessions)
        session = self._added(body)
        threading.Thread(target=self._run, args=(session,), daemon=True).start()
        url = f"https://www.kaggle.com/code/{body['slug']}"
        invalid = {"invalidDatasetSources": unknown, "invalidCompetitionSources": refused}
        return {"ref": body["slug"], "url": url, "versionNumber": session.version, **invalid}

    def ended(self, runner: Callable[[Session], None]) -> Session:
        """A session that was pushed and has ended before the test begins."""
        session = self._added({})
        self.runner = runner
        self._run(session)
        return session

    def _added(self, body: dict) -> Session:
        """A new session; it mounts data sets, and the newest completed output of the notebooks, in the new layout."""
        mounts = {
            f"datasets/{name}": self.folder / "datasets" / name
            for name in body.get("datasetDataSources", [])
        }
        mounts |= {
            f"competitions/{name}": self.folder / name
            for name in body.get("competitionDataSources", [])
        }
        if completed := [session for session in self.sessions if session.status == "COMPLETE"]:
            mounts |= {
                f"notebooks/{name}": completed[-1].working
                for name in body.get("kernelDataSources", [])
            }
        version = len(self.sessions) + 1
        session = Session(version, body, self.folder / f"version-{version}" / "working", mounts)
        session.working.mkdir(parents=True)
        self.sessions.append(session)
        return session

    def _run(self, session: Session) -> None:
        session.status = "RUNNING"
        try:
            self.runner(session)
            session.status = "COMPLETE"
        except Exception as error:  # what a notebook raises
            session.failure = str(error)
            session.status = "ERROR"

    def lose(self, session: Session) -> None:
        """The session was killed: its output is gone."""
        shutil.rmtree(session.working)
        session.working.mkdir()
        raise RuntimeError("Your notebook was stopped because it exceeded the limits.")

    def newest(self) -> Session:
        if not self.sessions:
            raise FileNotFoundError
        return self.sessions[-1]

    def get_status(self, body: dict) -> dict:
        session = self.newest()
        if self.stale and len(self.sessions) > 1:
            self.stale -= 1
            session = self.sessions[-2]
        return {"status": session.status, "failureMessage": session.failure}

    def list_output(self, body: dict) -> dict:
        session = self.newest()
        if session.status == "COMPLETE":
            files = sorted(p for p in session.working.rglob("*") if p.is_file())
        else:
            files = []
        names = [path.relative_to(session.working).as_posix() for path in files]
        names += [self.stray_file] * bool(self.stray_file)
        first = int(body.get("pageToken") or 0)
        page = names[first : first + PAGE]
        url = f"http://localhost/files/{session.version}/"
        log = "[" + "\n,".join(json.dumps(event) for event in session.log)
        if session.status not in ACTIVE:
            log += "]"
        files = [{"fileName": name, "url": url + quote(name)} for name in page]
        answer = {"files": files, "log": log}
        if first + PAGE < len(names):
            answer["nextPageToken"] = str(first + PAGE)
        return answer

    def get_kernel(self, body: dict) -> dict:
        slug = body["kernelSlug"]
        blob = {
            "source": self.newest().request["text"],
            "language": "python",
            "kernelType": "notebook",
            "slug": slug,
        }
        return {"metadata": {"ref": f"{body['userName']}/{slug}", "slug": slug}, "blob": blob}

    def get_quota(self, body: dict) -> dict:
        if self.quota_hours is None:
            return {}
        used, total = self.quota_hours
        gpu = {"timeUsed": f"{used * 3600:.0f}s", "totalTimeAllowed": f"{total * 3600:.0f}s"}
        return {"quotaRefreshTime": "2026-10-10T00:00:00Z", "gpuQuota": gpu}

    def start_upload(self, body: dict) -> dict:
        token = f"upload-{len(self.uploads)}"
        self.uploads[token] = SimpleNamespace(name=body["name"], data=b"")
        return {"token": token, "createUrl": f"http://localhost/upload/{token}"}

    def save_dataset(self, body: dict) -> dict:
        """A new data set, or the next version of one, whose `body` holds another."""
        name = f"{body['ownerSlug']}/{body.get('slug') or body.get('datasetSlug')}"
        body = body.get("body", body)
        uploads = [self.uploads[file["token"]] for file in body.get("files", [])]
        files = {upload.name: upload.data for upload in uploads}
        self.datasets.setdefault(name, []).append({**body, "contents": files})
        return {"status": "ok", "url": f"https://www.kaggle.com/datasets/{name}", "ref": name}

    def dataset_status(self, body: dict) -> dict:
        if f"{body['ownerSlug']}/{body['datasetSlug']}" not in self.datasets:
            raise FileNotFoundError
        return {"status": self.states.pop(0) if self.states else "READY"}

    def submit(self, body: dict) -> dict:
        if body["competitionName"] not in self.competitions:
            raise FileNotFoundError
        upload = self.uploads[body["blobFileTokens"]]
        self.submissions.insert(
            0,
            {
                "ref": len(self.submissions) + 1, "fileName": upload.name, "date": "2026-11-29T10:00:00Z",
                "description": body["submissionDescription"], "status": "COMPLETE", "publicScore": "0.86",
                "data": upload.data.decode(),
            },
        )  # fmt: skip
        return {"message": f"Successfully submitted to {body['competitionName']}", "ref": 1}

    def list_submissions(self, body: dict) -> dict:
        fields = [{k: v for k, v in each.items() if k != "data"} for each in self.submissions]
        return {"submissions": fields}

    METHODS = {  # noqa: RUF012
        "SaveKernel": save_kernel, "GetKernelSessionStatus": get_status, "ListKernelSessionOutput": list_output,
        "GetKernel": get_kernel, "GetAcceleratorQuotaStatistics": get_quota, "StartBlobUpload": start_upload,
        "StartSubmissionUpload": lambda stub, body: stub.start_upload({"name": body["fileName"]}),
        "CreateSubmission": submit, "ListSubmissions": list_submissions,
        "GetSubmissionLimits": lambda stub, body: {"numAllowedNow": 4},
        "CreateDataset": save_dataset, "CreateDatasetVersion": save_dataset, "GetDatasetStatus": dataset_status,
    }  # fmt: skip

    def count(self, method: str) -> int:
        return sum(name == method for name, _ in self.calls)

    def settled(self) -> None:
        self.wait_for(lambda: self.sessions[-1].status not in ACTIVE)

    def wait_for(self, done: Callable[[], bool], seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not done():
            last = [name for name, _ in self.calls[-8:]]
            assert time.monotonic() < end, f"not within {seconds} s; last calls: {last}"
            time.sleep(0.02)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = (
        -1
    )  # head and body in one packet: in two, each answer waits 40 ms for an acknowledgement
    stub: Stub

    def log_message(self, *arguments: object) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        name = urlsplit(self.path).path.rpartition("/")[2]
        self.stub.calls.append((name, body))
        method = Stub.METHODS.get(name)
        if failures := self.stub.failures.get(name):
            code = failures.pop(0)
        else:
            code = 200
        if "Authorization" not in self.headers:
            return self.refuse(401)
        if method is None or code != 200:
            return self.refuse(404 if method is None else code)
        time.sleep(self.stub.delay.get(name, 0))
        try:
            self.answer(200, method(self.stub, body))
        except FileNotFoundError:
            self.refuse(404)

    def refuse(self, code: int) -> None:
        """An error in one of the two forms that Kaggle has; neither holds the code in its message."""
        error = {"code": code, "message": MESSAGES.get(code, "Internal.")}
        self.answer(code, {"error": error} if self.stub.nested else error)

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if match := re.fullmatch(r"/files/(\d+)/(.*)", path):
            file = self.stub.sessions[int(match[1]) - 1].working / unquote(match[2])
            self.answer(200, file.read_bytes() if file.is_file() else b"outside")
        elif path.startswith("/api/v1/kernels/logs/stream/"):
            self.stub.streams += 1
            session = self.stub.newest()
            lines = "".join(f"data: {json.dumps(event)}\n\n" for event in session.log)
            self.answer(200, (lines + "data: END_OF_LOG\n\n").encode(), "text/event-stream")
        else:
            self.answer(404, b"")

    def do_PUT(self) -> None:
        """A resumable upload, whole: https://cloud.google.com/storage/docs/performing-resumable-uploads"""
        upload = self.stub.uploads[urlsplit(self.path).path.rsplit("/", 1)[1]]
        upload.data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.answer(400 if self.stub.fail_uploads else 200, b"")
        self.stub.fail_uploads = max(0, self.stub.fail_uploads - 1)

    def answer(
        self, code: int, body: dict | bytes, kind: str = "", headers: dict | None = None
    ) -> None:
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        kind = kind or (
            "application/json" if isinstance(body, dict) else "application/octet-stream"
        )
        self.send_response(code)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(data)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed in the middle of a request is what some tests are about."""


def execute_here(
    arguments: tuple[str, ...], seconds: float, hold: int | None
) -> tuple[int, str, str]:
    """What `client._execute` does, without a process of its own."""
    from kaggle import cli

    from trainbook.kaggle import child

    out = io.StringIO()
    error = io.StringIO()
    before = sys.argv
    sys.argv = ["kaggle", "--no-warn", *arguments]
    try:
        unused = [name for name in OTHERS if name != arguments[0]]
        others = {f"parse_{name}": lambda subparsers: None for name in unused}
        with redirect_stdout(out), redirect_stderr(error), mock.patch.multiple(cli, **others):
            child.main()
    except SystemExit as end:
        return int(end.code or 0), out.getvalue(), error.getvalue()
    except Exception as crash:  # a child would print a traceback
        return 1, out.getvalue(), f"{error.getvalue()}{type(crash).__name__}: {crash}\n"
    finally:
        sys.argv = before
    if (
        "User cancelled operation" in out.getvalue()
    ):  # the client caught an interrupt that was meant for the chain
        raise KeyboardInterrupt
    return 0, out.getvalue().replace("\r\n", "\n"), error.getvalue()  # as a child's text arrives


@contextmanager
def serving(folder: Path) -> Iterator[tuple[Stub, dict[str, str]]]:
    """A stub that serves, and the environment that leads the real client to it and to nothing else."""
    stub = Stub(folder / "stub")
    handler = type("StubHandler", (Handler,), {"stub": stub})
    server = _Server(("127.0.0.1", 0), handler)
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
    ).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    home = folder / "home"
    (home / "tmp").mkdir(parents=True)
    environment = {
        "KAGGLE_API_ENVIRONMENT": "LOCALHOST", "HTTP_PROXY": address, "http_proxy": address, "NO_PROXY": "",
        "no_proxy": "", "KAGGLE_USERNAME": "ada", "KAGGLE_KEY": KEY, "KAGGLE_CONFIG_DIR": str(home / ".kaggle"),
        "HOME": str(home), "TMPDIR": str(home / "tmp"),
        "LANGUAGE": "C",  # or the client looks on the disk for a translation of each of a thousand texts
    }  # fmt: skip
    try:
        yield stub, environment
    finally:
        server.shutdown()
        server.server_close()
