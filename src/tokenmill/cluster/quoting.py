"""How values get into a batch script: nothing that a user types may be read as code.

The shell reads the script's commands, sbatch reads its `#SBATCH` lines, and each has its own rules.
"""

from __future__ import annotations

import os
import re
import shlex

from tokenmill.errors import ConfigError

_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "'": "\\'", "\\": "\\\\"}
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,+=:@/-]*")


def quote(text: str) -> str:
    r"""Return `text` as one word of bash, on one line, whatever is in it.

    Line ends and other control characters are written as escapes: a script with a bare one in it
    could not be reviewed, and sbatch refuses scripts with a carriage return before a line end.

    >>> print(quote("plain"), quote("a b"), quote("it's"), quote("$(x)"), quote("a\n#SBATCH"))
    plain 'a b' 'it'"'"'s' '$(x)' $'a\n#SBATCH'
    """
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(_escape(character) for character in text) + "'"


def directive_word(value: str, *, what: str) -> str:
    """Return a value for an `#SBATCH` line as it is, if it is a plain word; refuse it otherwise."""
    if not _WORD.fullmatch(value):
        raise ConfigError(
            f"{what} is {value!r}, expected letters, digits and _.,+=:@/- "
            "with a letter, a digit or _ first"
        )
    return value


def directive_path(value: str, *, what: str) -> str:
    """Return a path in the quotes that sbatch understands in an `#SBATCH` line.

    Spaces, quotes and everything that means something to a shell come through. Control characters
    are refused, and so is the backslash, by which Slurm means something of its own.
    """
    if not value.isprintable() or "\\" in value:
        raise ConfigError(
            f"{what} is {value!r}, expected a path without line ends, control characters and "
            "backslashes, which Slurm would read in its own way"
        )
    return '"' + value.replace('"', '\\"') + '"'


def _escape(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    data = os.fsencode(character)  # also what was not UTF-8 in the first place
    return "".join(f"\\x{byte:02x}" for byte in data)
