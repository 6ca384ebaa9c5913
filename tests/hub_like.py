"""A small stand-in for the Hugging Face hub on loopback: what its library asks of it."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class HubLike:
    """Serves `repos`: per repository its files. `token`: asked for where it is set."""

    repos: dict[str, dict[str, bytes]]
    token: str | None = None
    refuses_with: int | None = None
    """The status of every answer."""
    cut_after: dict[str, int] = field(default_factory=dict)
    """Files of which the first answer ends after so many bytes, as when a cable is pulled."""
    hold_after: dict[str, int] = field(default_factory=dict)
    """Files of which the first answer stands still after so many bytes, until the asker is gone."""
    sent: list[tuple[str, int]] = field(default_factory=list)
    """Each file that was asked for, and from which byte on."""
    sent_bytes: dict[str, int] = field(default_factory=dict)
    """Of each file, over all answers."""
    is_holding: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> HubLike:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                hub.answer(self, body=False)

            def do_GET(self) -> None:
                hub.answer(self, body=True)

            def log_message(self, format: str, *args: object) -> None:
                """Tests say what they need to say."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, handler: BaseHTTPRequestHandler, *, body: bool) -> None:
        path = unquote(urlsplit(handler.path).path)
        parts = path.strip("/").split("/")
        if self.refuses_with is not None:
            self._refuse(handler, self.refuses_with, "")
        elif self.token and handler.headers.get("Authorization") != f"Bearer {self.token}":
            self._refuse(handler, 401, "GatedRepo")
        elif path.startswith("/api/models/"):
            self._tell_about(handler, "/".join(parts[2:4]), parts[5] if len(parts) > 5 else "main")
        elif len(parts) > 4 and parts[2] == "resolve":
            self._give(handler, "/".join(parts[:2]), "/".join(parts[4:]), body=body)
        else:
            self._refuse(handler, 404, "EntryNotFound")

    def _tell_about(self, handler: BaseHTTPRequestHandler, repo: str, revision: str) -> None:
        files = self.repos.get(repo)
        if files is None:
            self._refuse(handler, 404, "RepoNotFound")
            return
        if revision not in ("main", COMMIT):
            self._refuse(handler, 404, "RevisionNotFound")
            return
        siblings = [{"rfilename": name, "size": len(data)} for name, data in files.items()]
        told = json.dumps({"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings})
        self._send(handler, 200, told.encode(), {"Content-Type": "application/json"}, body=True)

    def _give(self, handler: BaseHTTPRequestHandler, repo: str, name: str, *, body: bool) -> None:
        data = self.repos.get(repo, {}).get(name)
        if data is None:
            self._refuse(handler, 404, "EntryNotFound")
            return
        headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": COMMIT}
        begin, status = 0, 200
        if asked := handler.headers.get("Range"):
            begin = int(asked.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
            status = 206
        if body:
            self.sent.append((name, begin))
            stop = self.hold_after.pop(name, 0)
            size = min(stop or len(data), len(data) - begin)
            self.sent_bytes[name] = self.sent_bytes.get(name, 0) + size
            if stop:
                self._send(handler, status, data[begin:], headers, body=True, stop_after=stop)
                self.is_holding.set()
                handler.rfile.read(1)  # nothing comes: it returns when the connection ends
                return
            if cut := self.cut_after.pop(name, 0):
                self._send(handler, status, data[begin:], headers, body=True, stop_after=cut)
                return
        self._send(handler, status, data[begin:], headers, body=body)

    def _refuse(self, handler: BaseHTTPRequestHandler, status: int, code: str) -> None:
        self._send(handler, status, b"", {"X-Error-Code": code}, body=True)

    def _send(
        self, handler: BaseHTTPRequestHandler, status: int, data: bytes, headers: dict[str, str],
        *, body: bool, stop_after: int | None = None,
    ) -> None:  # fmt: skip
        handler.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        if body:
            handler.wfile.write(data[:stop_after])
        if stop_after is not None:
            handler.close_connection = True
