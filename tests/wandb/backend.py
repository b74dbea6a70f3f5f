"""A W&B server on loopback that takes what an online run sends, keeps it, and gives it back.

It answers the GraphQL calls that wandb makes for one run and stores the file stream, so that the run's
rows, config and alerts can be compared with what was logged, and read with ``wandb.Api``.
"""

from __future__ import annotations

import gzip
import json
import re
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_USER = {"id": "u", "entity": "me", "username": "me", "email": "me@localhost", "admin": False, "flags": "{}"}
_VIEWER = {
    **_USER,
    "name": "me",
    "teams": {"edges": []},
    "apiKeys": {"edges": []},
    "deletedAt": None,
    "defaultEntity": {"id": "e", "name": "me"},
}


class Backend:
    """The server and what it has received; use as a context manager.

    Attributes:
        calls: Name and variables of each GraphQL call.
        history: Rows of the run's history.
        config: The run's config.
        run: Name of the run that there is to read.
    """

    run = "r1"

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.history: list[dict[str, Any]] = []
        self.config: dict[str, Any] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Backend:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def alerts(self) -> list[dict[str, Any]]:
        """Variables of the alerts that were raised."""
        return [variables for name, variables in self.calls if name == "NotifyScriptableRunAlert"]

    def answer(self, name: str, variables: dict[str, Any]) -> dict[str, Any]:
        """The data that a GraphQL call gets back."""
        self.calls.append((name, variables))
        if name == "UpsertBucket":
            if variables.get("config"):
                self.config |= {k: v["value"] for k, v in json.loads(variables["config"]).items()}
            return {"upsertBucket": {"bucket": _bucket(variables), "inserted": True}}
        if name == "CreateRunFiles":
            files = [{"name": f, "uploadUrl": f"{self.url}/files/{f}"} for f in variables["files"]]
            return {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}
        if name == "RunResumeStatus":
            return {"model": self._resumed(variables)}
        if name == "Runs":
            return {"project": self._runs(name, variables)}
        if (variables.get("name") or variables.get("runName") or variables.get("run")) == self.run:
            return {"project": {"run": self._read(name, variables)}}
        return {
            "Run": {"project": None},
            "GetViewer": {"viewer": _VIEWER},
            "GetDefaultEntity": {"viewer": _VIEWER},
            "Viewer": {"viewer": _USER | {"teams": {"edges": []}}},
            "ServerInfo": {"serverInfo": {"cliVersionInfo": {"max_cli_version": "9.0.0"}, "features": []}},
            "ServerFeaturesQuery": {"serverInfo": {"features": []}},
            "UpsertView2": {"upsertView": {"view": {"id": "v", "name": "nw-abc-v"}, "inserted": True}},
            "NotifyScriptableRunAlert": {"notifyScriptableRunAlert": {"success": True}},
        }.get(name, {})

    def _resumed(self, variables: dict[str, Any]) -> dict[str, Any] | None:
        """What a process that goes on with the run is told of it."""
        if not self.history:
            return None
        tail = json.dumps([json.dumps(self.history[-1])])
        counts = {"logLineCount": 0, "historyLineCount": len(self.history), "eventsLineCount": 0}
        told = {"historyTail": tail, "eventsTail": "[]", "summaryMetrics": "{}", "wandbConfig": '{"t": 1}'}
        return {
            "id": "p",
            "name": "p",
            "entity": {"id": "e", "name": "me"},
            "bucket": _bucket(variables) | counts | told | {"config": self._config_text()},
        }

    def _config_text(self) -> str:
        return json.dumps({key: {"value": value} for key, value in self.config.items()})

    def _read(self, name: str, variables: dict[str, Any]) -> dict[str, Any]:
        """What a query of ``wandb.Api`` gets of the run."""
        last = max((row["_step"] for row in self.history), default=-1)
        if name == "SampledHistoryPage":
            spec = json.loads(variables["spec"])
            keys = dict.fromkeys(spec["keys"])
            rows = [row for row in self.history if spec["minStep"] <= row["_step"] <= spec["maxStep"]]
            found = [{key: row[key] for key in keys} for row in rows if keys.keys() <= row.keys()]
            return {"sampledHistory": [found[: spec["samples"]]]}
        if name == "RunParquetHistory":
            return {"parquetHistory": {"parquetUrls": [], "liveData": []}}
        return {
            "id": "x",
            "name": self.run,
            "displayName": self.run,
            "state": "crashed",
            "projectId": "1",
            "config": self._config_text(),
            "summaryMetrics": "{}",
            "systemMetrics": "{}",
            "historyKeys": {"lastStep": last},
            "user": {"name": "me", "username": "me"},
            "tags": [],
        }

    def _runs(self, name: str, variables: dict[str, Any]) -> dict[str, Any]:
        """The project's runs, of which there is one."""
        edges = [{"node": self._read(name, variables), "cursor": "c"}]
        runs = {"edges": edges, "pageInfo": {"endCursor": "c", "hasNextPage": False}}
        return {"internalId": "1", "runCount": 1, "readOnly": False, "runs": runs}

    def stream(self, files: dict[str, Any]) -> None:
        """Take a part of the run's file stream."""
        for name, part in files.items():
            if name.endswith("history.jsonl"):
                self.history += [json.loads(line) for line in part["content"]]


def _bucket(variables: dict[str, Any]) -> dict[str, Any]:
    project = {"id": "p", "name": variables.get("project") or "p", "entity": {"id": "e", "name": "me"}}
    return {
        "id": "r",
        "name": variables.get("name") or "r",
        "displayName": variables.get("displayName"),
        "description": "",
        "config": "{}",
        "sweepName": None,
        "historyLineCount": 0,
        "project": project,
    }


def _handler(backend: Backend) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing on stderr."""

        def do_GET(self) -> None:
            self._reply({})

        def do_PUT(self) -> None:
            self._body()
            self._reply({})

        def do_POST(self) -> None:
            content = self._body()
            if not self.path.startswith(("/graphql", "/files/")):
                self._reply({})
                return
            body = json.loads(content or b"{}")
            if self.path.startswith("/graphql"):
                found = re.search(r"(?:query|mutation)\s+(\w+)", body["query"])
                assert found, body["query"]
                self._reply({"data": backend.answer(found[1], body.get("variables") or {})})
            else:
                backend.stream(body.get("files") or {})
                self._reply({"exitcode": None, "limits": {}})

        def _body(self) -> bytes:
            body = b""
            if self.headers.get("Transfer-Encoding") == "chunked":
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            else:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

        def _reply(self, answer: dict[str, Any]) -> None:
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(ConnectionError):  # whoever asked has gone
                self.wfile.write(body)

    return Handler
