from __future__ import annotations

import threading

import numpy as np
import pytest

from tokenmill.errors import TokenizerError
from tokenmill.tokenizer import SpecialIds, Tokenizer, load_definition


def test_a_batch_is_one_array_and_its_offsets(small_tokenizer: Tokenizer):
    ids, offsets = small_tokenizer.encode_batch(("one", "", "two three"))
    assert (ids.dtype, offsets.dtype) == (np.uint32, np.uint64)
    assert offsets.tolist() == [0, 1, 1, 1 + len(small_tokenizer.encode("two three"))]
    ids, offsets = small_tokenizer.encode_batch([])
    assert (ids.tolist(), offsets.tolist()) == ([], [0])


@pytest.mark.parametrize("normalizer", [b"null", b'{"type":"NFKC"}'])
def test_half_of_a_surrogate_pair_is_refused_with_its_place(
    normalizer: bytes, small_tokenizer: Tokenizer
):
    data = small_tokenizer.definition.replace(b'"normalizer":null', b'"normalizer":' + normalizer)
    tokenizer = load_definition(data, "tokenizer.json")
    with pytest.raises(TokenizerError, match=r"text 1 holds U\+D800 at character 2"):
        tokenizer.encode_batch(["fine", "no\ud800t"])
    with pytest.raises(TokenizerError, match="text 0 is bytes, expected str"):
        tokenizer.encode_batch([b"bytes"])  # pyright: ignore[reportArgumentType]
    with pytest.raises(TokenizerError, match="text 0 is tuple, expected str"):
        tokenizer.encode_batch([("a", "b")])  # pyright: ignore[reportArgumentType]
    with pytest.raises(TokenizerError, match=r"U\+DFFF"):
        list(tokenizer.encode_long("x\udfff"))
    with pytest.raises(TypeError, match="not one text"):
        tokenizer.encode_batch("text")
    assert tokenizer.encode("still works") == small_tokenizer.encode("still works")


def test_threads_get_what_one_thread_gets(small_tokenizer: Tokenizer):
    data = small_tokenizer.definition.replace(b'"normalizer":null', b'"normalizer":{"type":"NFKC"}')
    for tokenizer in (small_tokenizer, load_definition(data, "tokenizer.json")):
        texts = [f"text {i} <|endoftext|> it's {'é' * (i % 7)}" for i in range(200)]
        expected = [
            tokenizer.encode_batch(texts, allow_special=allow)[0].tolist()
            for allow in (False, True)
        ]
        wrong: list[int] = []

        def work(allow: bool) -> None:
            for _ in range(10):
                found = tokenizer.encode_batch(texts, allow_special=allow)[0].tolist()  # noqa: B023
                if found != expected[allow]:  # noqa: B023
                    wrong.append(1)  # noqa: B023

        threads = [threading.Thread(target=work, args=(i % 2 == 0,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def test_the_readable_form_shows_what_matters(small_tokenizer: Tokenizer):
    shown = repr(small_tokenizer)
    prefix = small_tokenizer.fingerprint[:19]
    assert shown == f"Tokenizer('small', 2,257 ids, eos=2256, encoder fastokens, {prefix})"
    without = small_tokenizer.with_special_ids(SpecialIds())
    assert "no special ids" in repr(without)


def test_special_ids_can_be_chosen(small_tokenizer: Tokenizer):
    chosen = small_tokenizer.with_special_ids(SpecialIds(bos=2256, eos=0, pad=1))
    assert (chosen.bos_id, chosen.eos_id, chosen.pad_id) == (2256, 0, 1)
    assert chosen.fingerprint == small_tokenizer.fingerprint
    with pytest.raises(TokenizerError, match="the pad id is 2257"):
        small_tokenizer.with_special_ids(SpecialIds(pad=2257))


def test_the_vocabulary_size_counts_added_tokens(small_tokenizer: Tokenizer):
    assert small_tokenizer.vocab_size == small_tokenizer.num_ids == 2257
