r"""The text inside one JSON document, found without building the rest of the document.

Only the text field has to be what it should be; other fields are skipped, though they must be JSON.
A field that occurs twice counts with its last value. Text with half of a surrogate pair, as in
`"\ud800"`, has no UTF-8 form and is refused; in other fields it does no harm.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from typing import Any

import msgspec

Buffer = bytes | bytearray | memoryview

_ESCAPES = re.compile(
    rb"""\\(?:  # one literal byte in front, so that the search jumps from one to the next
        (?P<pair> u[dD][89abAB][0-9a-fA-F]{2} \\u[dD][c-fC-F][0-9a-fA-F]{2})
        | (?P<lone> u[dD][89a-fA-F][0-9a-fA-F]{2})
        | .
    )""",
    re.VERBOSE | re.DOTALL,
)
_QUOTE = ord('"')
_WHITE_SPACE = b" \t\n\r"
_KINDS = {b"{": "an object", b"[": "an array", b'"': "a string", b"t": "true", b"f": "false"}

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class BadDocumentJSON(Exception):  # noqa: N818  (never leaves this package)
    """A piece of JSON holds no usable text: `reason` is the slug of a reject."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class TextField:
    """Finds the text of JSON objects at a path such as `a.b`."""

    def __init__(self, path: str) -> None:
        self._names = path.split(".")
        self._decoder = self._decoder_of(str)
        self._get: Callable[[Any], str] = attrgetter(".".join(["value"] * len(self._names)))

    def _decoder_of(self, kind: Any) -> msgspec.json.Decoder[Any]:
        for name in reversed(self._names):
            kind = msgspec.defstruct(
                "Document", [("value", kind)], rename={"value": name}, gc=False
            )
        return msgspec.json.Decoder(kind)

    def raw_text(self, data: Buffer) -> memoryview | None:
        """Return the inside of the JSON string that holds the text, not decoded, if it is one."""
        get: Callable[[Any], Any] = self._get
        found = memoryview(get(self._decoder_of(msgspec.Raw).decode(data)))
        while found and found[0] in _WHITE_SPACE:
            found = found[1:]
        while len(found) and found[-1] in _WHITE_SPACE:
            found = found[:-1]
        is_string = len(found) > 1 and found[0] == found[-1] == _QUOTE
        return found[1:-1] if is_string else None

    def texts(self, lines: Buffer) -> list[str] | None:
        """Return the text of each value in `lines`, or None if any of them has a fault.

        Values may lie on one line or cross lines: the caller has to look at the layout.
        """
        try:
            return list(map(self._get, self._decoder.decode_lines(lines)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    def text(self, data: Buffer) -> str:
        """Return the text of one object; raise `BadDocumentJSON` if it has none."""
        try:
            return self._get(_decode(self._decoder, data))
        except UnicodeDecodeError:
            raise _invalid_utf8(data) from None
        except RecursionError:
            raise _too_deep() from None
        except msgspec.ValidationError as error:
            raise self._explain(data, str(error)) from None
        except msgspec.DecodeError as error:
            return self._text_beside_surrogates(data, str(error))

    def _text_beside_surrogates(self, data: Buffer, fault: str) -> str:
        """Return the text if lone surrogates are the only fault, and none of them is in it."""
        if not _has_lone_surrogate(data):
            raise BadDocumentJSON("bad-json", fault)
        # Put one character in their place, then another: the text changes if they were in it.
        text = self.text(_replace_lone_surrogates(data, rb"\ufffd"))
        if text != self.text(_replace_lone_surrogates(data, rb"\ufffe")):
            raise BadDocumentJSON("lone-surrogate", "the text has half of a surrogate pair")
        return text

    def _explain(self, data: Buffer, fault: str) -> BadDocumentJSON:
        """Say why there is no text where it should be."""
        try:
            return self._walk(bytes(data).strip(), fault)
        except RecursionError:
            return _too_deep()
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return BadDocumentJSON("bad-json", str(error))

    def _walk(self, value: bytes, fault: str) -> BadDocumentJSON:
        if not value.startswith(b"{"):
            return BadDocumentJSON("not-an-object", f"found {_kind(value)}, expected an object")
        path = ""
        for name in self._names:
            if not value.startswith(b"{"):
                reason = "null-text" if value.startswith(b"n") else "missing-text"
                return BadDocumentJSON(reason, f"field {path!r} is {_kind(value)}, not an object")
            found = _decode(_FIELDS, value).get(name)
            path = f"{path}.{name}" if path else name
            if found is None:
                return BadDocumentJSON("missing-text", f"there is no field {path!r}")
            value = bytes(found).strip()
        if value.startswith(b"n"):
            return BadDocumentJSON("null-text", f"field {path!r} is null")
        if not value.startswith(b'"'):
            return BadDocumentJSON("not-text", f"field {path!r} is {_kind(value)}, not a string")
        return BadDocumentJSON("bad-json", fault)


def string_text(data: Buffer) -> str:
    """Return the text of a JSON string; raise `BadDocumentJSON` if it is not well-formed."""
    try:
        return msgspec.json.decode(data, type=str)
    except UnicodeDecodeError:
        raise _invalid_utf8(data) from None
    except msgspec.DecodeError as error:
        if _has_lone_surrogate(data):
            raise BadDocumentJSON("lone-surrogate", "half of a surrogate pair") from None
        raise BadDocumentJSON("bad-json", str(error)) from None


def _decode(decoder: msgspec.json.Decoder[Any], data: Buffer) -> Any:
    try:
        return decoder.decode(data)
    except RecursionError:
        # How deep a decoder may go depends on how deep its caller already is. A new thread starts
        # from the same depth for all callers, so all of them agree on what is too deep.
        with ThreadPoolExecutor(1) as executor:
            return executor.submit(decoder.decode, data).result()


def _too_deep() -> BadDocumentJSON:
    return BadDocumentJSON("bad-json", "the document is nested too deeply")


def _has_lone_surrogate(data: Buffer) -> bool:
    return any(found["lone"] for found in _ESCAPES.finditer(data))


def _replace_lone_surrogates(data: Buffer, mark: bytes) -> bytes:
    return _ESCAPES.sub(lambda found: mark if found["lone"] else found[0], data)


def _invalid_utf8(data: Buffer) -> BadDocumentJSON:
    try:
        str(data, "utf-8")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        detail = f"byte 0x{byte:02x} at byte {error.start} of the document: {error.reason}"
        return BadDocumentJSON("invalid-utf8", detail)
    return BadDocumentJSON("invalid-utf8", "the text is not valid UTF-8")


def _kind(value: bytes) -> str:
    return "null" if value.startswith(b"n") else _KINDS.get(value[:1], "a number")
