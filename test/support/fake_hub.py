# SPDX-License-Identifier: Apache-2.0
"""A model hub on this machine: as much of its protocol as fetching a model takes, and a record of what was fetched."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """Serves one folder as the repository ``name``."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        self.fetched: list[str] = []
        """Files whose content was sent, in order."""

    def answer(self, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of one request."""
        path = path.split("?")[0]
        if path.startswith(f"/api/models/{self.name}"):
            siblings = [{"rfilename": name, "size": len(content)} for name, content in self.files.items()]
            body = json.dumps({"id": self.name, "sha": COMMIT, "siblings": siblings}).encode()
            return 200, {"Content-Type": "application/json"}, body
        if not path.startswith(f"/{self.name}/resolve/"):
            return 404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository Not Found"}, b""
        content = self.files.get(path.rsplit("/", 1)[1])
        if content is None:
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}, b""
        if method == "GET":
            self.fetched.append(path.rsplit("/", 1)[1])
        return 200, {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(content).hexdigest()}"'}, content


@contextmanager
def serving(hub: FakeHub) -> Iterator[str]:
    """Serve it within the context; gives the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _send(self) -> None:
            status, headers, body = hub.answer(self.command, self.path)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_GET = do_HEAD = _send

        def log_message(self, *_: object) -> None:
            """Keep the tests' output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
