from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from tokenmill import errors
from tokenmill.errors import ConfigError, MissingDependencyError, StorageError, TokenmillError

CLASSES = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, TokenmillError)
]


def make(kind: type[TokenmillError]) -> TokenmillError:
    if kind is MissingDependencyError:
        return MissingDependencyError("pyarrow", extra="parquet", purpose="reading Parquet")
    return kind("a.txt: gone", hint="look elsewhere")


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_survives_pickle_and_copy(kind: type[TokenmillError]):
    error = make(kind)
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is kind
        assert (other.message, other.hint, str(other)) == (error.message, error.hint, str(error))
        assert other.args == error.args


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("TokenmillError", 1),
        ("ConfigError", 2),
        ("MissingDependencyError", 2),
        ("TokenizerError", 2),
        ("SettingsChangedError", 2),
        ("NotAStoreError", 2),
        ("DamageError", 3),
        ("BadDocumentError", 4),
        ("StorageError", 5),
        ("BusyError", 6),
        ("Interrupted", 75),
    ],
)
def test_the_exit_codes_are_those_of_the_design(kind: str, code: int):
    assert getattr(errors, kind).exit_code == code


def test_every_error_has_its_exit_code_tested():
    assert len(CLASSES) == 11


def test_the_hint_is_shown_below_the_message():
    assert str(StorageError("disk: full", hint="free some space")) == (
        "disk: full\n  hint: free some space"
    )
    assert str(StorageError("disk: full")) == "disk: full"


def test_a_missing_package_comes_with_the_command_that_installs_it():
    error = MissingDependencyError("pyarrow", extra="parquet", purpose="reading Parquet")
    assert isinstance(error, ConfigError)
    assert error.message == "reading Parquet needs the package 'pyarrow', which is not installed"
    assert error.hint == 'pip install "tokenmill[parquet]"'
