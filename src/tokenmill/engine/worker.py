"""A worker process: reads tasks as JSON lines on stdin, answers with JSON lines on stdout.

    {"id": 7, "function": "package.module:name", "task": {…}}      in
    {"id": 7, "result": {…}}                                        out, or
    {"id": 7, "error": {"kind": "StorageError", "message": …, "hint": …}}

The end of its input, which also comes when the process that started it dies, makes it stop: running tasks
end at their next safe point.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from importlib import import_module
from typing import Any, get_type_hints

import msgspec

from tokenmill import errors
from tokenmill.engine.task import stop_requested


class Request(msgspec.Struct):
    """A task to run."""

    id: int
    function: str
    task: msgspec.Raw


class Failure(msgspec.Struct):
    """What a task raised."""

    kind: str
    message: str
    hint: str | None = None


class Answer(msgspec.Struct, omit_defaults=True):
    """The result of a task, or why there is none."""

    id: int
    result: msgspec.Raw | None = None
    error: Failure | None = None


def failure_of(error: BaseException) -> Failure:
    """Describe an exception so that it can be raised again elsewhere."""
    if isinstance(error, errors.TokenmillError):
        return Failure(type(error).__name__, error.message, error.hint)
    return Failure(type(error).__name__, traceback.format_exc())


def raise_failure(failure: Failure) -> None:
    """Raise in this process what a task raised in another."""
    kind = getattr(errors, failure.kind, None)
    if isinstance(kind, type) and issubclass(kind, errors.TokenmillError):
        error = errors.TokenmillError.__new__(kind)
        errors.TokenmillError.__init__(error, failure.message, hint=failure.hint)
        raise error
    raise RuntimeError(f"a task failed in a worker process:\n{failure.message}")


def find_function(name: str) -> Callable[[Any], Any]:
    """Return the function `package.module:name` stands for."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def answer(request: Request) -> bytes:
    """Run a task and return the line to send back."""
    try:
        function = find_function(request.function)
        (task_type,) = (hint for name, hint in get_type_hints(function).items() if name != "return")
        result = function(msgspec.json.decode(request.task, type=task_type))
        reply = Answer(request.id, result=msgspec.Raw(msgspec.json.encode(result)))
    except Exception as error:  # noqa: BLE001  (the task boundary: everything goes back to the driver)
        reply = Answer(request.id, error=failure_of(error))
    return msgspec.json.encode(reply) + b"\n"


def main() -> None:
    """Serve tasks until the input ends."""
    num_threads = int(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the driver, which ends our input
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever a library prints must not mix with the answers
    stop, lock = threading.Event(), threading.Lock()
    stop_requested.set(stop)

    def serve(request: Request) -> None:
        line = answer(request)
        with lock:
            replies.write(line)

    with ThreadPoolExecutor(num_threads) as pool:
        for line in sys.stdin.buffer:
            request = msgspec.json.decode(line, type=Request)
            pool.submit(copy_context().run, serve, request)
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)


if __name__ == "__main__":
    main()
