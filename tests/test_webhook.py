"""Posts arrive, and a server that does not answer well costs one warning and no time."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from composer_mixmon.config import Webhook
from composer_mixmon.webhook import Webhooks

Received = list[tuple[str, dict[str, object]]]


class Server:
    """Answers every POST on loopback with one status and keeps what came."""

    def __init__(self) -> None:
        self.status = 200
        self.received: Received = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                """Say nothing on stderr."""

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.received.append((self.headers["Content-Type"], json.loads(body)))
                self.send_response(outer.status)
                self.end_headers()

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/hook"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.http.shutdown()
    running.http.server_close()


def test_event_arrives(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """The event is posted as JSON."""
    hooks = Webhooks()
    hooks.post(Webhook(server.url), {"batch": 7})
    hooks.join()
    assert server.received == [("application/json", {"batch": 7})]
    assert not caplog.records


def test_errors_cost_one_warning(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """A server that says 500 is named in one warning, however often it is posted to."""
    server.status = 500
    hooks = Webhooks()
    for _ in range(3):
        hooks.post(Webhook(server.url), {})
    hooks.join()
    assert len(server.received) == 3
    assert len(caplog.records) == 1
    assert "HTTP Error 500" in caplog.text


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/secret", "http://nonexistent.invalid/secret"])
def test_no_server(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A URL where nobody listens costs a warning, which keeps the URL's path to itself."""
    hooks = Webhooks()
    hooks.post(Webhook(url), {})
    hooks.join()
    assert len(caplog.records) == 1
    assert "secret" not in caplog.text


def test_silent_server_blocks_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that accepts and never answers: posting returns at once, the end waits for a limited time."""
    monkeypatch.setattr("composer_mixmon.webhook._TIMEOUT_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        hooks = Webhooks()
        start = time.monotonic()
        hooks.post(Webhook(f"http://127.0.0.1:{listening.getsockname()[1]}/"), {})
        posted = time.monotonic() - start
        hooks.join()
        assert posted < 0.5 < time.monotonic() - start
    assert "timed out" in caplog.text
