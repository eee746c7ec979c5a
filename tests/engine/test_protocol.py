from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import engine_tasks
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.engine.protocol import (
    Failure,
    error_of,
    failure_of,
    find_function,
    function_name,
    task_and_result_types,
)
from tokenmill.errors import (
    BusyError,
    ConfigError,
    Interrupted,
    MissingDependencyError,
    StorageError,
    TokenmillError,
)


class LocalError(StorageError):
    """A class that only this module knows."""


def send(error: BaseException) -> Exception:
    """Return an error as it is after its way to another process."""
    line = msgspec.json.encode(failure_of(error))
    return error_of(msgspec.json.decode(line, type=Failure))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StorageError("disk: full", hint="free some"), StorageError),
        (BusyError("busy"), BusyError),
        (Interrupted("stopped"), Interrupted),
        (TokenmillError("odd"), TokenmillError),
        (MissingDependencyError("a", extra="b", purpose="c"), MissingDependencyError),
        (LocalError("disk: full", hint="free some"), StorageError),
    ],
)
def test_our_errors_keep_class_message_and_hint(error: TokenmillError, kind: type[TokenmillError]):
    sent = send(error)
    assert isinstance(sent, TokenmillError)
    assert type(sent) is kind
    assert (sent.message, sent.hint, str(sent)) == (error.message, error.hint, str(error))


@given(st.text(), st.none() | st.text())
def test_any_message_and_hint_arrive(message: str, hint: str | None):
    sent = send(ConfigError(message, hint=hint))
    assert isinstance(sent, ConfigError)
    assert (sent.message, sent.hint) == (message, hint)


def test_an_error_of_the_system_keeps_its_number_and_file():
    sent = send(PermissionError(13, "Permission denied", "a.bin"))
    assert isinstance(sent, PermissionError)
    assert (sent.errno, sent.strerror, sent.filename) == (13, "Permission denied", "a.bin")


@pytest.mark.parametrize(
    ("kind", "expected", "message"),
    [
        ("bug", ValueError, "1 is not 2"),
        ("more than a message", RuntimeError, "UnicodeDecodeError: 'utf-8' codec can't decode"),
        ("not built in", RuntimeError, "CalledProcessError: Command 'ls'"),
        ("exit", RuntimeError, "SystemExit: 3"),
        ("odd name", ConfigError, r"caf\\udce9\.txt: gone"),
    ],
)
def test_bugs_arrive_with_the_trace_of_where_they_happened(
    kind: str, expected: type[Exception], message: str
):
    try:
        engine_tasks.fail_as(kind)
    except BaseException as error:  # noqa: BLE001  (all of them are the point)
        sent = send(error)
        with pytest.raises(expected, match=message):
            raise sent from None
        assert "in fail_as" in sent.__notes__[0]


def test_a_kind_that_is_no_exception_is_still_an_error():
    for kind in ("print", "rebuild_error", "nonsense", "int"):
        assert type(error_of(Failure(kind, "x"))) is RuntimeError


def test_a_function_is_found_again_by_its_name():
    name = function_name(engine_tasks.double)
    assert name == "engine_tasks:double"
    assert find_function(name) is engine_tasks.double
    assert task_and_result_types(engine_tasks.double) == (engine_tasks.Task, engine_tasks.Result)


def inner() -> Callable[[int], int]:
    def closure(task: int) -> int:
        return task

    return closure


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda task: task, "it is a lambda, a method or inside another function"),
        (inner(), "it is a lambda, a method or inside another function"),
        (engine_tasks.Holder().method, "it is a lambda, a method"),
        (functools.partial(engine_tasks.two_parameters, 1), "it has no name"),
        (engine_tasks.unannotated, "expected one parameter, the task, and annotations"),
        (engine_tasks.two_parameters, "expected one parameter, the task, and annotations"),
    ],
)
def test_a_function_that_another_process_cannot_run_is_refused(
    function: Callable[..., Any], problem: str
):
    with pytest.raises(TypeError, match=f"cannot run in another process: {problem}"):
        function_name(function)


def test_a_function_that_was_replaced_under_its_name_is_refused(monkeypatch: pytest.MonkeyPatch):
    double = engine_tasks.double
    monkeypatch.setattr(engine_tasks, "double", engine_tasks.give_pair)
    with pytest.raises(TypeError, match=r"engine_tasks\.double is something else"):
        function_name(double)
