"""What passes between a driver and its worker processes: JSON lines.

{"id": 7, "function": "package.module:name", "task": {…}}      to the worker
{"id": 7, "result": {…}}                                       back, or
{"id": 7, "error": {"kind": "StorageError", "message": …, "hint": …}}
"""

from __future__ import annotations

import builtins
import inspect
import traceback
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, get_type_hints

import msgspec

from tokenmill import errors
from tokenmill.errors import TokenmillError, rebuild_error


class Request(msgspec.Struct):
    """A task to run."""

    id: int
    function: str
    task: msgspec.Raw


class Failure(msgspec.Struct, omit_defaults=True):
    """What a task raised; `code` and `filename` are those of an operating-system error."""

    kind: str
    message: str
    hint: str | None = None
    code: int | None = None
    filename: str | None = None
    trace: str = ""


class Answer(msgspec.Struct, omit_defaults=True):
    """The result of a task as JSON, or why there is none."""

    id: int
    result: msgspec.Raw = msgspec.Raw()
    error: Failure | None = None


# Made once, here: msgspec learns a type at its first use, and two threads that both use it first
# can meet it half learned, which ends the process.
decode_request = msgspec.json.Decoder(Request).decode
decode_answer = msgspec.json.Decoder(Answer).decode


def function_name(function: Callable[..., Any]) -> str:
    """Return the name by which another process finds `function`; check that it does."""
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    if module is None or name is None:
        problem = "it has no name"
    elif module == "__main__":
        problem = "it is defined in the script or session itself"
    elif not name.isidentifier():
        problem = "it is a lambda, a method or inside another function"
    elif getattr(import_module(module), name, None) is not function:
        problem = f"{module}.{name} is something else"
    else:
        task_and_result_types(function)
        return f"{module}:{name}"
    raise TypeError(
        f"{function!r} cannot run in another process: {problem}; "
        "make it a plain function of a module that can be imported"
    )


@cache
def find_function(name: str) -> Callable[[Any], Any]:
    """Return the function that `package.module:name` stands for."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


@cache
def task_and_result_types(function: Callable[..., Any]) -> tuple[Any, Any]:
    """Return the annotations of a function's one parameter and of its result."""
    hints = get_type_hints(function)
    parameters = list(inspect.signature(function).parameters)
    if len(parameters) != 1 or not {parameters[0], "return"} <= hints.keys():
        raise TypeError(
            f"{function!r} cannot run in another process: expected one parameter, the task, and "
            "annotations for it and for the result, by which they are sent as JSON"
        )
    return hints[parameters[0]], hints["return"]


def failure_of(error: BaseException) -> Failure:
    """Describe an exception so that it can be raised again elsewhere."""
    trace = _plain("".join(traceback.format_exception(error)))
    if isinstance(error, TokenmillError):
        known = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
        hint = None if error.hint is None else _plain(error.hint)
        return Failure(known.__name__, _plain(error.message), hint=hint, trace=trace)
    if isinstance(error, OSError) and error.errno is not None:
        name = None if error.filename is None else _plain(str(error.filename))
        message = _plain(error.strerror or "")
        return Failure("OSError", message, code=error.errno, filename=name, trace=trace)
    return Failure(type(error).__name__, _plain(str(error)), trace=trace)


def error_of(failure: Failure) -> Exception:
    """Make the exception that a task raised in another process, as far as it can be known here."""
    kind = getattr(errors, failure.kind, None) or getattr(builtins, failure.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        error: Exception = RuntimeError(f"{failure.kind}: {failure.message}")
    elif issubclass(kind, TokenmillError):
        error = rebuild_error(kind, failure.message, failure.hint)
    elif failure.code is not None:
        error = OSError(failure.code, failure.message, failure.filename)
    else:
        try:
            error = kind(failure.message)
        except TypeError:  # a few classes want more than a message
            error = RuntimeError(f"{failure.kind}: {failure.message}")
    error.add_note(f"It was raised in a worker process:\n{failure.trace}")
    return error


def _plain(text: str) -> str:
    """Return a text that JSON can hold: file names can have bytes in them that it cannot."""
    return text.encode(errors="backslashreplace").decode()
