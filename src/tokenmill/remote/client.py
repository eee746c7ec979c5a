"""Calls obstore, again and again where that may help. Only this file knows it.

obstore runs on threads of its own, which a forked process does not have: a call there would wait
for ever. `is_forked` tells; reading then goes by `plain.py`.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

from tokenmill.errors import MissingDependencyError, StorageError
from tokenmill.remote.account import VARIABLES, Account, find_account
from tokenmill.remote.faults import Fault, read_fault, storage_fault
from tokenmill.remote.urls import split_url

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_TRIES = 8
_FIRST_TRIES = 3  # of an endpoint that has never answered: most likely it is the wrong one
_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 10.0
_CONNECT_SECONDS = 10
_REQUEST_SECONDS = 120
_PART_TRIES = 6


class ExistsError(Exception):
    """The object that was to be new is there already."""


class ChangedError(Exception):
    """The object is not the version that was asked for."""


class FaultError(Exception):
    """A request failed; `fault` says how."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault


@dataclass(slots=True)
class _State:
    """What this process knows of the object stores it talks to."""

    pid: int | None = None
    """The process in which obstore was used first."""
    accounts: dict[tuple[str | None, ...], Account] = field(default_factory=dict)
    stores: dict[tuple[Account, str, bool], Any] = field(default_factory=dict)
    reached: set[str] = field(default_factory=set)
    """Endpoints that have answered."""


_state = _State()
_lock = threading.Lock()


class ForbiddenError(StorageError):
    """The server knows the account or not, and does not allow this."""


def library() -> Any:
    """Return obstore, or say how to get it."""
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError as error:
        purpose = "reading from and writing to s3:// places"
        raise MissingDependencyError("obstore", extra="s3", purpose=purpose) from error
    return obstore


def is_forked() -> bool:
    """Tell whether this process was forked from one that had used obstore."""
    return _state.pid is not None and _state.pid != os.getpid()


def current_account() -> Account:
    """Return the account that the environment describes now."""
    key = tuple(os.environ.get(name) for name in VARIABLES)
    account = _state.accounts.get(key)
    if account is None:
        account = _state.accounts[key] = find_account()
    return account


def call(url: str, function: Callable[[Any, str], T], *, retries_parts: bool = False) -> T:
    """Return `function(store, key)` for the object at `url`, called until it works.

    Raises `ExistsError`, `ChangedError`, `FileNotFoundError`, or `StorageError` in the end.
    """
    bucket, key = split_url(url)

    def once() -> T:
        store = _store(bucket, retries_parts=retries_parts)
        return translated(url, lambda: function(store, key))

    return with_retries(url, once)


def call_once(url: str, function: Callable[[Any, str], T]) -> T:
    """Return `function(store, key)` with one try; what fails is `FaultError`."""
    bucket, key = split_url(url)
    store = _store(bucket, retries_parts=False)
    return translated(url, lambda: function(store, key))


def with_retries(url: str, once: Callable[[], T], *, so_far: Callable[[], int] = int) -> T:
    """Return `once()`, called again after each `FaultError` that may pass; the last is raised.

    Failures count from zero again whenever `so_far`, what has arrived until now, has grown.
    """
    failures = 0
    while True:
        before = so_far()
        try:
            result = once()
        except FaultError as error:
            failures = 1 if so_far() > before else failures + 1
            pause(url, error.fault, failures)
        else:
            _state.reached.add(current_account().endpoint)
            return result


def pause(url: str, fault: Fault, failures: int) -> None:
    """Wait before another try after `failures` in a row; raise where that would be in vain."""
    account = current_account()
    if fault.is_expired:
        with _lock:
            _state.accounts.clear()  # the files may hold newer ones
    if fault.status is not None:
        _state.reached.add(account.endpoint)
    is_known = account.endpoint in _state.reached
    if not fault.is_transient or failures >= (MAX_TRIES if is_known else _FIRST_TRIES):
        fail(url, fault)
    seconds = min(_FIRST_PAUSE_SECONDS * 2 ** (failures - 1), _LONGEST_PAUSE_SECONDS)
    seconds *= 1 + secrets.randbelow(1000) / 2000  # those who failed together return apart
    what = storage_fault(url, fault, account=account).message
    logger.warning("%s; trying again in %.1fs", what, seconds)
    time.sleep(seconds)


def fail(url: str, fault: Fault) -> NoReturn:
    """Raise what a caller can do something about."""
    if fault.is_missing:
        raise missing(url)
    error = storage_fault(url, fault, account=current_account())
    raise ForbiddenError(error.message, hint=error.hint) if fault.is_refusal else error


def missing(url: str) -> FileNotFoundError:
    """Return the error for an object that is not there, as for a file."""
    return FileNotFoundError(2, "there is no such object", url)


def translated(url: str, function: Callable[[], T]) -> T:
    """Call obstore; turn what it raises into errors of ours, without its long texts."""
    exceptions = library().exceptions
    try:
        return function()
    except exceptions.AlreadyExistsError:
        raise ExistsError(url) from None
    except (exceptions.PreconditionError, exceptions.NotModifiedError):
        raise ChangedError(url) from None
    except (exceptions.BaseError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of a local file that is sent
        fault = read_fault(str(error), is_network=isinstance(error, exceptions.GenericError))
        if isinstance(error, FileNotFoundError) and fault.status is None:
            fault = Fault(404, "NoSuchKey")
    raise FaultError(fault)


def _store(bucket: str, *, retries_parts: bool) -> Any:
    account = current_account()
    key = (account, bucket, retries_parts)
    with _lock:
        if is_forked():
            raise StorageError(
                f"s3://{bucket}: a forked process can only read from an object store",
                hint='start processes with "spawn" or "forkserver" instead of "fork"',
            )
        store = _state.stores.get(key)
        if store is None:
            store = _state.stores[key] = _new_store(account, bucket, retries_parts=retries_parts)
            _state.pid = os.getpid()
    return store


def _new_store(account: Account, bucket: str, *, retries_parts: bool) -> Any:
    config: dict[str, Any] = {"region": account.region}
    if account.endpoint:
        config["endpoint"] = account.endpoint
    if account.skip_signature:
        config["skip_signature"] = True
    elif account.credentials is not None:
        config["access_key_id"] = account.credentials.access_key
        config["secret_access_key"] = account.credentials.secret_key
        if account.credentials.token:
            config["session_token"] = account.credentials.token
    return library().store.S3Store(
        bucket,
        config=config,
        client_options={
            "allow_http": account.endpoint.startswith("http://"),
            "connect_timeout": timedelta(seconds=_CONNECT_SECONDS),
            "timeout": timedelta(seconds=_REQUEST_SECONDS),
        },
        # Our own tries know whether an answer may have been lost; only parts of an upload, which
        # we do not see, are tried again inside.
        retry_config={"max_retries": _PART_TRIES if retries_parts else 0},
    )
