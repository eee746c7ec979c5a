"""Every error that a caller can do something about, with a hint and an exit code."""

from __future__ import annotations

from typing import Any


class TokenmillError(Exception):
    """Something the caller can fix.

    The message names the object, what was found and what was expected; `hint` is what to do next.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  hint: {self.hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Subclasses may be made from other arguments than a message; copies must not care.
        return rebuild_error, (type(self), self.message, self.hint)


def rebuild_error(
    kind: type[TokenmillError], message: str, hint: str | None = None
) -> TokenmillError:
    """Make an error of the class `kind` from its parts, as it arrives from another process."""
    error = kind.__new__(kind, message)
    TokenmillError.__init__(error, message, hint=hint)
    return error


class ConfigError(TokenmillError):
    """A setting, a flag or a path is wrong; nothing was written."""

    exit_code = 2


class MissingDependencyError(ConfigError):
    """An optional package is needed for what was asked."""

    def __init__(self, package: str, *, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed",
            hint=f'pip install "tokenmill[{extra}]"',
        )


class TokenizerError(ConfigError):
    """A tokenizer cannot be loaded, or does not fit what was asked of it."""


class SettingsChangedError(ConfigError):
    """The output was begun with other settings or from other input."""


class NotAStoreError(ConfigError):
    """A folder holds no finished store."""


class DamageError(TokenmillError):
    """Stored data is not what was written: a flipped bit, a cut or missing file."""

    exit_code = 3


class BadDocumentError(TokenmillError):
    """Input documents are broken, and more of them than the settings allow."""

    exit_code = 4


class StorageError(TokenmillError):
    """The disk is full, a file cannot be read or written, or permission is missing."""

    exit_code = 5


class BusyError(TokenmillError):
    """Another run holds this output."""

    exit_code = 6


class Interrupted(TokenmillError):  # noqa: N818  (it is a request, not a fault)
    """The user asked to stop; the run stopped at a safe point and continues when repeated."""

    exit_code = 75
