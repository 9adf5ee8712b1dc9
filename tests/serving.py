"""A server on loopback that answers as hosts of archives do, and counts what is asked of it."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class Files(BaseHTTPRequestHandler):
    """GET of a few paths; `asked` has (method, path) of every request since the test began."""

    asked: list[tuple[str, str]] = []  # noqa: RUF012

    def do_GET(self):
        self.asked.append(("GET", self.path))
        if self.path == "/slow":
            time.sleep(3)
        self.send_response(200 if self.path == "/there" else 404)
        self.send_header("Content-Length", "1234")
        self.end_headers()

    def log_message(self, *arguments):
        pass


@pytest.fixture
def address(monkeypatch):
    """The address of the server."""
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    Files.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Files)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
