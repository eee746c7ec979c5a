"""A small web server that misbehaves on request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class File:
    """How the server answers for one path."""

    data: bytes = b""
    etag: str | None = '"1"'
    ranges: bool = True
    cut_after: int | None = None
    """Bytes of body after which the connection is closed, for the first `num_cuts` answers."""
    num_cuts: int = 1 << 30
    framing: str = "length"
    """length, chunked, or close: nothing but the end of the connection tells the end."""
    statuses: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """Answers to give first."""
    redirect: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    token: str | None = None
    """Without it in the request, the answer is 401."""
    on_request: Callable[[], object] | None = None


@dataclass
class Web:
    """A running server: what it has, and what it was asked."""

    url: str
    files: dict[str, File] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def ranges(self) -> list[str | None]:
        return [headers.get("Range") for _, headers in self.requests]


@contextmanager
def serve() -> Generator[Web]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    web = Web(f"http://127.0.0.1:{server.server_address[1]}")
    server.web = web  # pyright: ignore[reportAttributeAccessIssue]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        web: Web = self.server.web  # pyright: ignore[reportAttributeAccessIssue]
        self.close_connection = True
        web.requests.append((self.path, dict(self.headers.items())))
        file = web.files.get(self.path) or web.files.get(self.path.partition("?")[0])
        if file is None:
            self._answer(404)
            return
        if file.on_request:
            file.on_request()
        if file.token and self.headers.get("Authorization") != f"Bearer {file.token}":
            self._answer(401)
        elif file.statuses:
            status, headers = file.statuses.pop(0)
            self._answer(status, headers)
        elif file.redirect:
            self._answer(302, {"Location": file.redirect, **file.headers})
        else:
            self._send(file)

    def _send(self, file: File) -> None:
        start, stop, status = 0, len(file.data), 200
        wanted = self.headers.get("Range")
        still = self.headers.get("If-Range") in {None, file.etag}
        if wanted and file.ranges and still:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, status = int(first), 206
            stop = min(int(last) + 1, stop) if last else stop
            if start >= len(file.data):
                self._answer(416)
                return
        body = file.data[start:stop]
        headers = dict(file.headers)
        if file.etag:
            headers["ETag"] = file.etag
        if status == 206:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(file.data)}"
        cut = file.cut_after is not None and len(body) > file.cut_after and file.num_cuts > 0
        file.num_cuts -= cut
        sent = body[: file.cut_after] if cut else body
        if file.framing == "length":
            headers["Content-Length"] = str(len(body))
        elif file.framing == "chunked":
            headers["Transfer-Encoding"] = "chunked"
            sent = b"%x\r\n%s\r\n" % (len(sent), sent) + (b"" if cut else b"0\r\n\r\n")
        self._head(status, headers)
        self.wfile.write(sent)

    def _answer(self, status: int, headers: dict[str, str] | None = None) -> None:
        self._head(status, {"Content-Length": "0", **(headers or {})})

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""
