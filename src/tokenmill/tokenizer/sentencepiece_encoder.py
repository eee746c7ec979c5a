"""The adapter to the sentencepiece library, for its own model files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tokenmill.errors import MissingDependencyError, TokenizerError
from tokenmill.tokenizer.special import SpecialIds

_SPACE = "▁"


class SentencePieceEncoder:
    """Encodes and decodes with sentencepiece. Control symbols in a text are always text."""

    name = "sentencepiece"

    def __init__(self, data: bytes, *, path: str) -> None:
        """Load the content of a model file; `path` is for messages."""
        try:
            import sentencepiece
        except ImportError as error:
            raise MissingDependencyError(
                "sentencepiece", extra="sentencepiece", purpose=f"{path}: a SentencePiece model"
            ) from error
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=data)
        except (RuntimeError, OSError) as error:
            raise TokenizerError(f"{path}: not a SentencePiece model: {error}") from error
        self.num_ids: int = self._processor.get_piece_size()
        if self.num_ids == 0:
            raise TokenizerError(f"{path}: not a SentencePiece model: it holds no pieces")

    @property
    def special_ids(self) -> SpecialIds:
        """The ids that the model itself names."""
        model = self._processor
        bos, eos, pad = model.bos_id(), model.eos_id(), model.pad_id()
        return SpecialIds(
            bos=bos if bos >= 0 else None,
            eos=eos if eos >= 0 else None,
            pad=pad if pad >= 0 else None,
        )

    @property
    def control_ids(self) -> dict[str, int]:
        """The symbols that no text encodes to, such as `<s>`."""
        model = self._processor
        found = (i for i in range(self.num_ids) if model.is_control(i) or model.is_unknown(i))
        return {model.id_to_piece(i): i for i in found}

    def encode_batch(
        self, texts: Sequence[str], *, allow_special: bool
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
        """Return the ids of all texts in one array, and len(texts) + 1 offsets into it."""
        if allow_special:
            raise TokenizerError(
                "a SentencePiece model never reads control symbols from text",
                hint="use the tokenizer.json of the same model, or leave special tokens as text",
            )
        pieces = [
            np.array(ids, dtype=np.uint32)
            for ids in self._processor.encode(list(texts), out_type=int, num_threads=1)
        ]
        offsets = np.zeros(len(pieces) + 1, dtype=np.uint64)
        np.cumsum([len(piece) for piece in pieces], out=offsets[1:])
        return np.concatenate([np.empty(0, dtype=np.uint32), *pieces]), offsets

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that an id stands for inside a text; a control symbol has none."""
        model = self._processor
        if model.is_control(token_id):
            return b""
        if model.is_byte(token_id):
            return bytes([int(model.id_to_piece(token_id)[3:5], 16)])  # "<0x0A>"
        if model.is_unknown(token_id):
            return model.decode([token_id]).encode()
        return model.id_to_piece(token_id).replace(_SPACE, " ").encode()

    def decode_bytes(self, ids: list[int]) -> bytes:
        """Return the bytes of the text that the ids stand for.

        The library's own text, except that pieces of a character stay the bytes that they are.
        """
        text = self._processor.decode(ids)
        joined = b"".join(self.token_bytes(token_id) for token_id in ids)
        if "\ufffd" not in text:
            return text.encode()
        # The library leaves out the space that it puts before a text; everything else is joined.
        num_spaces = len(joined) - len(joined.lstrip(b" "))
        kept = len(text) - len(text.lstrip(" "))
        return joined[num_spaces - kept :]
