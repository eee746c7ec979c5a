"""A worker process: takes tasks as JSON lines on its input, answers with JSON lines.

The end of its input, which also comes when the process that started it dies, makes it stop: running
tasks end at their next safe point, or with the process a few seconds later.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

import msgspec

from tokenmill.engine.protocol import (
    Answer,
    Request,
    decode_request,
    failure_of,
    find_function,
    task_and_result_types,
)
from tokenmill.engine.task import stoppable_context

GRACE_SECONDS = 5.0
"""How long a task may take to reach a safe point once the input has ended."""
_DECODING = threading.Lock()  # first use of a type by two threads is not safe: see protocol.py


def main() -> None:
    """Serve tasks until the input ends; the one argument is the number of threads."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the driver, which ends our input
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    requests, replies = _take_streams()
    serve(requests, replies, num_threads=int(sys.argv[1]))


def serve(requests: BinaryIO, replies: BinaryIO, *, num_threads: int) -> None:
    """Run tasks on threads, until there are no more requests."""
    stop, lock = threading.Event(), threading.Lock()
    context = stoppable_context(stop)

    def work(request: Request) -> None:
        line = msgspec.json.encode(answer(request)) + b"\n"
        with lock:
            replies.write(line)
            replies.flush()

    with ThreadPoolExecutor(num_threads, thread_name_prefix="task") as pool:
        for line in requests:
            request = decode_request(line)
            pool.submit(context.copy().run, work, request)
        stop.set()
        deadline = threading.Timer(GRACE_SECONDS, os._exit, [1])
        deadline.daemon = True
        deadline.start()
        pool.shutdown(wait=True, cancel_futures=True)
    deadline.cancel()


def answer(request: Request) -> Answer:
    """Run a task and return what to send back."""
    try:
        function = find_function(request.function)
        task_type, _ = task_and_result_types(function)
        with _DECODING:
            task = msgspec.json.decode(request.task, type=task_type)
        result = function(task)
        return Answer(request.id, result=msgspec.Raw(msgspec.json.encode(result)))
    except BaseException as error:  # noqa: BLE001  (the task boundary: sys.exit() is a failure too)
        return Answer(request.id, error=failure_of(error))


def _take_streams() -> tuple[BinaryIO, BinaryIO]:
    """Keep the pipes to the driver for ourselves.

    What a library prints goes to stderr, and what it or a program that it starts tries to read is
    empty, so that neither mixes with the lines of the protocol.
    """
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, replies
