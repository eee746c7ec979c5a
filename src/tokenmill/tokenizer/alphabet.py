"""GPT-2's way to write any bytes as printable text: one character for each of the 256 bytes.

Vocabulary files of byte-level BPE are JSON, so a token such as b" the" is written "Ġthe" in them.
Printable bytes of Latin-1 stand for themselves; the other 68 (control characters, the space, the
soft hyphen) take the characters from U+0100 on, in order.
"""

from __future__ import annotations

import codecs

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = sorted(set(range(256)) - set(_PRINTABLE))

GPT2_BYTE_ORDER = bytes(_PRINTABLE + _HIDDEN)
"""The bytes in the order of GPT-2's first 256 ids."""

_LETTERS = {byte: chr(byte) for byte in _PRINTABLE}
_LETTERS |= {byte: chr(0x100 + number) for number, byte in enumerate(_HIDDEN)}
ALPHABET = "".join(_LETTERS[byte] for byte in range(256))
"""The character that stands for each byte."""

_ENCODING_MAP = codecs.charmap_build(ALPHABET)


def bytes_to_text(token: bytes) -> str:
    """Write bytes in the printable alphabet.

    >>> bytes_to_text(b" the")
    'Ġthe'
    """
    return codecs.charmap_decode(token, "strict", ALPHABET)[0]  # pyright: ignore[reportArgumentType]


def text_to_bytes(text: str) -> bytes:
    """Read bytes back from the printable alphabet; `UnicodeEncodeError` for any other character.

    >>> text_to_bytes("Ġthe")
    b' the'
    """
    return codecs.charmap_encode(text, "strict", _ENCODING_MAP)[0]
