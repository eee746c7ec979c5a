"""Tokens as people can read them: each with its own background on a terminal, or between bars."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_BACKGROUNDS = (24, 58, 53, 22, 60, 94)


def render_tokens(pieces: Sequence[bytes], *, special: Iterable[int] = (), color: bool) -> str:
    r"""Return tokens joined for a terminal.

    `special` are the places of control tokens, shown in reverse. Part of a character is hex.

    >>> render_tokens([b"Hello", b" world", b"\xe2"], color=False)
    'Hello| world|<E2>'
    """
    marked = set(special)
    shown = [_readable(piece) for piece in pieces]
    if not color:
        return "|".join(shown)
    return "".join(
        f"\x1b[7m{text}\x1b[0m"
        if i in marked
        else f"\x1b[48;5;{_BACKGROUNDS[i % len(_BACKGROUNDS)]};97m{text}\x1b[0m"
        for i, text in enumerate(shown)
    )


def _readable(piece: bytes) -> str:
    try:
        text = piece.decode()
    except UnicodeDecodeError:
        return "".join(f"<{byte:02X}>" for byte in piece)
    escaped = text.replace("\n", "⏎\n").replace("\t", "→").replace("\r", "␍")
    return "".join(c if c.isprintable() or c == "\n" else f"<{ord(c):X}>" for c in escaped)
