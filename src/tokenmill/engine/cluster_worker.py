"""One attempt at a task, in a worker process of a cluster: an order comes in, an account goes out.

Both are JSON. Nothing here knows which cluster it is; that is the business of the driver's side.
"""

from __future__ import annotations

import os
import platform
import signal
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import version
from typing import Any

import msgspec

from tokenmill.engine.protocol import Answer, Failure, Request, failure_of, find_function
from tokenmill.engine.task import stoppable_context
from tokenmill.engine.worker import answer
from tokenmill.errors import ConfigError


class Order(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task, and what must hold in the process that runs it."""

    request: Request
    before: Request | None = None
    """Something to run first, once in each process."""
    folder: str = ""
    """The working folder of the driver: users give relative paths."""
    version: str = ""
    """The version of tokenmill that the driver has."""


class Account(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How an attempt went: a result as JSON or a failure, and where and how long it ran."""

    answer: Answer
    seconds: float
    node: str


decode_order = msgspec.json.Decoder(Order).decode
decode_account = msgspec.json.Decoder(Account).decode

_ready: set[bytes] = set()
"""What was run before tasks in this process, so that it is not run again."""


def run_attempt(data: bytes) -> bytes:
    """Run the task of an order; whatever it raises becomes part of the account."""
    started = time.monotonic()
    order = decode_order(data)
    stop = threading.Event()
    with _cancelling_sets(stop):
        made = stoppable_context(stop).run(_run, order)
    seconds = time.monotonic() - started
    account = Account(answer=made, seconds=round(seconds, 3), node=platform.node())
    return msgspec.json.encode(account)


def warm_up(name: str) -> None:
    """Load the module of a function; a worker that cannot will say so when it gets a task."""
    with suppress(ImportError, AttributeError):
        find_function(name)


def _run(order: Order) -> Answer:
    failure = _prepare(order)
    if failure is not None:
        return Answer(order.request.id, error=failure)
    return answer(order.request)


def _prepare(order: Order) -> Failure | None:
    """Bring this process into the state that the order asks for, or say why it cannot be."""
    own = _own_version()
    if order.version != own:
        return failure_of(
            ConfigError(
                f"node {platform.node()} has tokenmill {own}, the driver has {order.version}",
                hint="install the same version on all nodes",
            )
        )
    with suppress(OSError):  # then a relative path will be an error that names it
        os.chdir(order.folder)
    before = msgspec.json.encode(order.before)
    if order.before is None or before in _ready:
        return None
    made = answer(order.before)
    if made.error is None:
        _ready.clear()  # another run: what was ready for the last one is of no use any more
        _ready.add(before)
    return made.error


@cache
def _own_version() -> str:
    return version("tokenmill")


@contextmanager
def _cancelling_sets(stop: threading.Event) -> Generator[None]:
    """Let a cancellation, which comes as an interrupt, end the task at its next safe point."""

    def note(_number: int, _frame: Any) -> None:
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield  # then it comes as an exception, or with the end of the process
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
