"""`Tokenizer`: text to ids and back, whatever file it came from and whichever library encodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tokenmill.errors import TokenizerError
from tokenmill.tokenizer.cuts import CutRule
from tokenmill.tokenizer.decoder import Decoder
from tokenmill.tokenizer.encoder import Encoder
from tokenmill.tokenizer.special import SpecialIds

PIECE_CHARS = 1 << 19


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Tokenizer:
    """Encodes texts to ids and decodes ids. Safe to use from several threads at once.

    Encoding never adds BOS or EOS: who builds a stream of documents does. The text of a special
    token inside a document is text, unless `allow_special=True` asks for its id. Tokens that were
    added to a vocabulary without being special, often runs of spaces, always match.
    """

    name: str
    """What it was loaded as: a short name, a hub id or a path."""
    num_ids: int
    """The highest id plus one, added tokens included; some ids below may be unused."""
    special_ids: SpecialIds
    """The ids that open, close and pad a document."""
    fingerprint: str
    """`sha256:…` of what the tokenizer does, the same for every file form (see `fingerprint`)."""
    definition: bytes = field(repr=False)
    """The content of the file that defines the tokenizer; `load_definition` loads it."""
    definition_name: str
    """The name of that file: `tokenizer.json` or `tokenizer.model`."""
    special_tokens: Mapping[str, int]
    """The special tokens by their text."""
    encoder_library: Encoder
    decoder: Decoder
    cuts: CutRule | None
    """Where a long text may be cut; None if it must be encoded as a whole."""

    def __post_init__(self) -> None:
        for role in ("bos", "eos", "pad"):
            token_id = getattr(self.special_ids, role)
            if token_id is not None and not 0 <= token_id < self.num_ids:
                raise TokenizerError(
                    f"{self.name}: the {role} id is {token_id}, but ids end at {self.num_ids - 1}"
                )

    @property
    def encoder(self) -> str:
        """The library that encodes: `fastokens`, `tokenizers` or `sentencepiece`."""
        return self.encoder_library.name

    @property
    def vocab_size(self) -> int:
        """The same as `num_ids`."""
        return self.num_ids

    @property
    def bos_id(self) -> int | None:
        """The id that opens a document, if there is one."""
        return self.special_ids.bos

    @property
    def eos_id(self) -> int | None:
        """The id that closes a document, if there is one."""
        return self.special_ids.eos

    @property
    def pad_id(self) -> int | None:
        """The id that fills up rows, if there is one."""
        return self.special_ids.pad

    def with_special_ids(self, special_ids: SpecialIds) -> Tokenizer:
        """Return the same tokenizer with other ids to open, close and pad documents."""
        return replace(self, special_ids=special_ids)

    def encode_batch(
        self, texts: Sequence[str], *, allow_special: bool = False
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
        """Return the ids of all texts, one after the other, and len(texts) + 1 offsets into them.

        The ids of text i are ids[offsets[i]:offsets[i + 1]]. The arrays are read-only.
        """
        if isinstance(texts, str):
            raise TypeError("encode_batch takes a sequence of texts, not one text")
        try:
            return self.encoder_library.encode_batch(texts, allow_special=allow_special)
        except (UnicodeError, TypeError, RuntimeError) as error:
            _complain_about_text(texts)
            raise TokenizerError(f"{self.name}: {self.encoder} cannot encode: {error}") from error

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """Return the ids of one text."""
        return self.encode_batch([text], allow_special=allow_special)[0].tolist()

    def encode_long(
        self, text: str, *, allow_special: bool = False, piece_chars: int = PIECE_CHARS
    ) -> Iterator[NDArray[np.uint32]]:
        """Yield the ids of a long text in pieces that together equal `encode` of the whole.

        A piece is the ids of about `piece_chars` characters, cut where it makes no difference (see
        `cuts`); more if there is no such place. Memory stays bounded by that. A tokenizer with a
        normalizer, an unknown pattern or a SentencePiece model encodes the text as a whole.
        """
        return self._encode_until(
            len(text), text, allow_special=allow_special, piece_chars=piece_chars
        )

    def _encode_until(
        self, stop: int, text: str, *, allow_special: bool, piece_chars: int
    ) -> Iterator[NDArray[np.uint32]]:
        """Yield the ids of text[:stop], where `stop` is a safe cut or the end of the text."""
        start = 0
        while self.cuts is not None and stop - start > piece_chars:
            target = start + piece_chars
            cut = self.cuts.last_cut(text, start, target, allow_special=allow_special)
            if cut is None:
                cut = self.cuts.first_cut(text, target, allow_special=allow_special)
            if cut is None or cut >= stop:
                break
            yield self.encode_batch([text[start:cut]], allow_special=allow_special)[0]
            start = cut
        if start < stop:
            rest = text if (start, stop) == (0, len(text)) else text[start:stop]
            yield self.encode_batch([rest], allow_special=allow_special)[0]

    def encode_iterable(
        self,
        chunks: Iterable[str],
        *,
        allow_special: bool = False,
        piece_chars: int = PIECE_CHARS,
    ) -> Iterator[NDArray[np.uint32]]:
        """Yield the ids of a text that comes in chunks: equal to `encode` of the joined chunks.

        How the text is chunked makes no difference. Memory is bounded as in `encode_long`.
        """
        pending: list[str] = []
        num_chars, target = 0, piece_chars
        for chunk in chunks:
            pending.append(chunk)
            num_chars += len(chunk)
            if self.cuts is None or num_chars < target + self.cuts.reach:
                continue
            text = "".join(pending)
            known = len(text) - self.cuts.reach  # what comes next cannot change cuts up to here
            cut = self.cuts.last_cut(text, 0, known, allow_special=allow_special)
            if cut is not None:
                yield from self._encode_until(
                    cut, text, allow_special=allow_special, piece_chars=piece_chars
                )
                text = text[cut:]
            # where nothing can be cut, look again only when the text has doubled
            pending, num_chars, target = [text], len(text), max(piece_chars, 2 * len(text))
        yield from self.encode_long(
            "".join(pending), allow_special=allow_special, piece_chars=piece_chars
        )

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the ids; bytes that are not UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode(errors="replace")

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the exact bytes of the ids, which need not be whole characters."""
        plain = ids.tolist() if isinstance(ids, np.ndarray) else [int(i) for i in ids]
        try:
            return self.decoder.decode_bytes(plain)
        except (LookupError, OverflowError) as error:
            unknown = next((i for i in plain if not self._knows(i)), None)
            raise self._unknown_id(unknown) from error

    def token_bytes(self, token_id: int) -> bytes:
        """Return the exact bytes that one id stands for inside a text."""
        try:
            return self.decoder.token_bytes(int(token_id))
        except (LookupError, OverflowError) as error:
            raise self._unknown_id(token_id) from error

    def _knows(self, token_id: int) -> bool:
        try:
            self.decoder.token_bytes(token_id)
        except (LookupError, OverflowError):
            return False
        return True

    def _unknown_id(self, token_id: int | None) -> TokenizerError:
        return TokenizerError(
            f"{self.name}: the id {token_id} is not in the vocabulary of {self.num_ids} ids"
        )

    def __repr__(self) -> str:
        special = ", ".join(
            f"{role}={token_id}"
            for role in ("bos", "eos", "pad")
            if (token_id := getattr(self.special_ids, role)) is not None
        )
        return (
            f"Tokenizer({self.name!r}, {self.num_ids:,} ids, {special or 'no special ids'}, "
            f"encoder {self.encoder}, {self.fingerprint[:19]})"
        )


def _complain_about_text(texts: Sequence[str]) -> None:
    """Raise the error for the first text that is no text, if there is one."""
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TokenizerError(f"text {index} is {type(text).__name__}, expected str")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TokenizerError(
                f"text {index} holds U+{ord(text[error.start]):04X} at character {error.start}: "
                "half of a surrogate pair, which is not a character",
                hint="decode the input as UTF-8 with errors='strict' or 'replace'",
            ) from error
