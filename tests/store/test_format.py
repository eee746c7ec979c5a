from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.errors import ConfigError
from tokenmill.store import format as layout


@pytest.mark.parametrize(
    "dtype", [np.dtype("<u2"), np.dtype("<u4"), layout.BLOCKS_DTYPE, layout.DOCS_DTYPE]
)
@pytest.mark.parametrize("length", [0, 1, 999, 12_345])
def test_headers_and_sizes_are_those_of_numpy(dtype: np.dtype, length: int):
    file = io.BytesIO()
    np.save(file, np.zeros(length, dtype=dtype))
    header = layout.npy_header(dtype, length)
    assert file.getvalue()[: len(header)] == header
    assert len(file.getvalue()) == layout.npy_bytes(dtype, length)


@given(length=st.integers(0, 2**60))
def test_headers_have_a_fixed_length(length: int):
    for dtype in (np.dtype("<u2"), np.dtype("<u4"), layout.BLOCKS_DTYPE):
        assert len(layout.npy_header(dtype, length)) == layout.HEADER_BYTES
    assert len(layout.npy_header(layout.DOCS_DTYPE, length)) == layout.DOCS_HEADER_BYTES


@pytest.mark.parametrize(
    ("num_ids", "expected"),
    [(1, "uint16"), (65_536, "uint16"), (65_537, "uint32"), (2**32, "uint32")],
)
def test_dtype_is_chosen_from_the_number_of_ids(num_ids: int, expected: str):
    assert layout.choose_dtype(num_ids).name == expected


def test_a_dtype_that_is_too_narrow_is_refused():
    with pytest.raises(ConfigError, match="65536 does not fit uint16"):
        layout.choose_dtype(65_537, "uint16")
    with pytest.raises(ConfigError, match="does not fit uint32"):
        layout.choose_dtype(2**32 + 1)
    with pytest.raises(ConfigError, match="expected auto, uint16, uint32"):
        layout.choose_dtype(10, "int8")


@given(ids=st.lists(st.integers(0, 2**32 - 1) | st.integers(65_530, 65_541)))
def test_narrowing_keeps_every_id_or_refuses(ids: list[int]):
    wide = np.array(ids, dtype=np.uint32)
    assert layout.narrow(wide, np.dtype("<u4")).tolist() == ids
    if max(ids, default=0) < 1 << 16:
        assert layout.narrow(wide, np.dtype("<u2")).tolist() == ids
    else:
        with pytest.raises(ConfigError, match=f"{max(ids)} does not fit uint16"):
            layout.narrow(wide, np.dtype("<u2"))


def test_narrowing_takes_no_type_in_which_ids_may_have_wrapped_already():
    with pytest.raises(TypeError, match="int64"):
        layout.narrow(np.array([1]), np.dtype("<u2"))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "name", ["", "../x", "a/b", "Train", "a.b", ".hidden", "a\n", "ü", "a" * 32]
)
def test_a_split_cannot_be_named_like_a_path(name: str):
    assert not layout.is_split_name(name)
    with pytest.raises(ConfigError, match="not a name for a shard"):
        layout.shard_name(name, 0)


@pytest.mark.parametrize(
    "name", ["tokenizer", "tokenizer.", "../tokenizer.json", "tokenizer.json/..", "x.json"]
)
def test_a_tokenizer_file_cannot_be_named_like_a_path(name: str):
    assert not layout.is_tokenizer_name(name)
