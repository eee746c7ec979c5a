"""A TCP proxy that cuts connections in the middle, as a bad network does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_BLOCK_BYTES = 1 << 16


@dataclass(slots=True)
class CuttingProxy:
    """Cuts the next `num_cuts` connections once so many bytes have passed one way."""

    endpoint: str
    num_cuts: int = 0
    after_answer_bytes: int | None = None
    """Bytes of answers to let through; 0 takes the request and never answers."""
    after_request_bytes: int | None = None
    num_done: int = 0
    """Connections that were cut."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def cut(
        self, num_cuts: int, *, answer_bytes: int | None = None, request_bytes: int | None = None
    ) -> None:
        """Cut connections from now on."""
        self.after_answer_bytes, self.after_request_bytes = answer_bytes, request_bytes
        self.num_cuts, self.num_done = num_cuts, 0

    def room(self, passed: int, *, is_answer: bool) -> bool:
        """Tell whether these bytes of a connection may pass; if not, it is to be cut."""
        limit = self.after_answer_bytes if is_answer else self.after_request_bytes
        with self._lock:
            if limit is None or passed <= limit or self.num_done >= self.num_cuts:
                return True
            self.num_done += 1
            return False


@contextmanager
def cutting_proxy(endpoint: str) -> Generator[CuttingProxy]:
    """Stand between a client and the server at `endpoint`."""
    parts = urlsplit(endpoint)
    server = (parts.hostname or "", parts.port or 80)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = CuttingProxy(f"http://127.0.0.1:{listener.getsockname()[1]}")
        threading.Thread(target=_serve, args=(listener, server, proxy), daemon=True).start()
        yield proxy


def _serve(listener: socket.socket, server: tuple[str, int], proxy: CuttingProxy) -> None:
    with suppress(OSError):  # the listener is closed at the end
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_connect, args=(client, server, proxy), daemon=True).start()


def _connect(client: socket.socket, server: tuple[str, int], proxy: CuttingProxy) -> None:
    with client, socket.create_connection(server) as upstream:
        back = threading.Thread(target=_pass_on, args=(upstream, client, proxy, True), daemon=True)
        back.start()
        _pass_on(client, upstream, proxy, False)
        back.join()


def _pass_on(
    one: socket.socket, other: socket.socket, proxy: CuttingProxy, is_answer: bool
) -> None:
    passed = 0
    with suppress(OSError):
        while data := one.recv(_BLOCK_BYTES):
            passed += len(data)
            if not proxy.room(passed, is_answer=is_answer):
                break
            other.sendall(data)
    for end in (one, other):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
