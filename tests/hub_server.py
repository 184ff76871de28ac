"""A server on this machine that speaks as much of the Hugging Face hub's protocol as an upload and a download need.

Files whose name ends in .safetensors are uploaded through Git LFS, as on the hub; others are part of the commit.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_of_the_tests"
UPLOAD_WARNING = "ignore:Use 'content=:DeprecationWarning"  # of huggingface_hub's own code


@dataclass
class Hub:
    """What the server holds; tests may read and change it."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)  # by owner/name/path
    objects: dict[str, bytes] = field(default_factory=dict)  # of Git LFS, by sha256
    asked: list[str] = field(default_factory=list)  # method and path of each request


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        body = self._body()
        path = self.path.partition("?")[0]
        self.hub.asked.append(f"{self.command} {path}")
        if self.command in ("POST", "PUT") and not path.startswith("/objects/"):
            assert self.headers["Authorization"] == f"Bearer {TOKEN}"
        if path == "/api/repos/create":
            wanted = json.loads(body)
            self._send({"url": f"{self.hub.address}/{wanted.get('organization') or 'me'}/{wanted['name']}"})
        elif path == "/api/validate-yaml":
            self._send({"errors": [], "warnings": []})
        elif re.fullmatch(r"/api/models/[^/]+/[^/]+/preupload/main", path):
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = [{"path": name, "uploadMode": _mode(name), "shouldIgnore": False} for name in names]
            self._send({"files": modes})
        elif path.endswith(".git/info/lfs/objects/batch"):
            self._send({"transfer": "basic", "objects": [self._upload(entry) for entry in json.loads(body)["objects"]]})
        elif path.startswith("/objects/") and self.command == "PUT":
            assert hashlib.sha256(body).hexdigest() == path.removeprefix("/objects/")
            self.hub.objects[path.removeprefix("/objects/")] = body
            self._send({})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
            self._commit(found[1], [json.loads(line) for line in body.splitlines()])
            url = f"{self.hub.address}/{found[1]}/commit/{COMMIT}"
            self._send({"success": True, "commitOid": COMMIT, "commitUrl": url, "hookOutput": ""})
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            self._download(self.hub.files.get(f"{found[1]}/{found[2]}"))
        else:
            self._send({"error": "Not found."}, status=404)

    do_GET = do_HEAD = do_POST = do_PUT = _answer

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _upload(self, entry: dict[str, Any]) -> dict[str, Any]:
        return {**entry, "actions": {"upload": {"href": f"{self.hub.address}/objects/{entry['oid']}"}}}

    def _commit(self, repository: str, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            value, name = line["value"], f"{repository}/{line['value'].get('path')}"
            if line["key"] == "file":
                self.hub.files[name] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.hub.files[name] = self.hub.objects[value["oid"]]

    def _download(self, content: bytes | None) -> None:
        if content is None:
            self._send({"error": "Entry not found"}, status=404, headers={"X-Error-Code": "EntryNotFound"})
        else:
            digest = hashlib.sha256(content).hexdigest()
            self._send(content, headers={"ETag": f'"{digest}"', "X-Repo-Commit": COMMIT})

    def _send(self, content: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


def _mode(name: str) -> str:
    return "lfs" if name.endswith(".safetensors") else "regular"


@contextmanager
def served_hub() -> Iterator[Hub]:
    """Serves an empty hub while the block runs."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(30)
