"""Parquet and Arrow: any text column, in pieces, with nulls and damage told apart."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tokenmill.errors import ConfigError, MissingDependencyError, StorageError
from tokenmill.sources import SourceSettings, cut_units, find_files, read_unit

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
ipc = pytest.importorskip("pyarrow.ipc")

TEXTS = ["one", "", "zwei é 語 😀 " * 3, "two\nlines", "x" * 3000] * 30
WITH_NULLS = [None if number % 7 == 3 else text for number, text in enumerate(TEXTS)]
STRING_TYPES = [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int8(), pa.large_string()),
]
BINARY_TYPES = [pa.binary(), pa.large_binary(), pa.binary_view()]


def write_parquet(path: Path, table, **options) -> Path:
    pq.write_table(table, path, row_group_size=options.pop("row_group_size", 40), **options)
    return path


def write_arrow(path: Path, table, *, is_stream: bool = False) -> Path:
    make = ipc.new_stream if is_stream else ipc.new_file
    with make(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=40)
    return path


def text_table(values, kind=None):
    encoded = values
    if kind in BINARY_TYPES:
        encoded = [value.encode() if isinstance(value, str) else value for value in values]
    return pa.table({"id": list(range(len(values))), "text": pa.array(encoded, type=kind)})


def check_nulls(found) -> None:
    expected = [(0, row, text) for row, text in enumerate(WITH_NULLS) if text is not None]
    assert found.documents == expected
    nulls = [(0, row, "null-text") for row, text in enumerate(WITH_NULLS) if text is None]
    assert found.rejects == nulls


@pytest.mark.parametrize("kind", [*STRING_TYPES, *BINARY_TYPES], ids=str)
def test_all_text_types_of_parquet_are_read(read_all, tmp_path: Path, kind):
    path = write_parquet(tmp_path / "a.parquet", text_table(WITH_NULLS, kind))
    for unit_bytes in (1, 10_000, 1 << 20):
        check_nulls(read_all(path, unit_bytes=unit_bytes))


@pytest.mark.parametrize("kind", [*STRING_TYPES, *BINARY_TYPES], ids=str)
@pytest.mark.parametrize("is_stream", [False, True])
def test_all_text_types_of_arrow_are_read(read_all, tmp_path: Path, kind, is_stream: bool):
    path = write_arrow(tmp_path / "a.arrow", text_table(WITH_NULLS, kind), is_stream=is_stream)
    check_nulls(read_all(path))


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_feather_is_read(read_all, tmp_path: Path, compression: str):
    feather = pytest.importorskip("pyarrow.feather")
    path = tmp_path / "a.feather"
    feather.write_feather(text_table(WITH_NULLS), str(path), compression=compression)
    check_nulls(read_all(path))


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "brotli", "lz4"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_all_codecs_and_page_versions_are_read(
    read_all, tmp_path: Path, compression: str, version: str
):
    path = write_parquet(
        tmp_path / "a.parquet",
        text_table(TEXTS),
        compression=compression,
        data_page_version=version,
        data_page_size=2000,
    )
    assert read_all(path).texts == TEXTS


def test_row_groups_are_units_and_rows_keep_their_numbers(read_all, tmp_path: Path):
    path = write_parquet(tmp_path / "a.parquet", text_table(TEXTS))
    found = read_all(path, unit_bytes=1)
    assert found.num_units == 4
    assert found.documents == [(0, row, text) for row, text in enumerate(TEXTS)]
    assert read_all(path).num_units == 1


def test_many_small_rows_come_in_batches(read_all, tmp_path: Path):
    texts = [f"{number} é" for number in range(40_000)]
    path = write_parquet(tmp_path / "a.parquet", text_table(texts), row_group_size=1 << 20)
    assert read_all(path).texts == texts
    path = write_arrow(tmp_path / "a.arrow", text_table(texts))
    assert read_all(path).texts == texts


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_nested_column_is_reached_by_its_path(read_all, tmp_path: Path, suffix: str):
    values = [{"b": {"c": "one", "x": 1}}, {"b": None}, None, {"b": {"c": None, "x": 2}}]
    table = pa.table({"id": [1, 2, 3, 4], "a": values, "z": ["no"] * 4})
    path = tmp_path / f"a.{suffix}"
    (write_parquet if suffix == "parquet" else write_arrow)(path, table)
    found = read_all(path, text_field="a.b.c")
    assert found.documents == [(0, 0, "one")]
    assert found.rejects == [(0, row, "null-text") for row in (1, 2, 3)]


def test_a_column_may_have_a_dot_in_its_name(read_all, tmp_path: Path):
    path = write_parquet(tmp_path / "a.parquet", pa.table({"a.b": ["one"], "a": [{"b": "two"}]}))
    assert read_all(path, text_field="a.b").texts == ["one"]


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("nothing", r"no single column 'nothing'; found a, id, text"),
        ("text.b", r"no single column"),
        ("a.c", r"no single column"),
        ("id", r"has type int64"),
        ("a", r"has type struct"),
    ],
)
def test_a_wrong_column_is_an_error_that_names_the_columns(
    tmp_path: Path, field: str, message: str
):
    table = pa.table({"text": ["x"], "id": [1], "a": [{"b": "y"}]})
    for path in (
        write_parquet(tmp_path / "a.parquet", table),
        write_arrow(tmp_path / "a.arrow", table),
    ):
        settings = SourceSettings(places=(str(path),), text_field=field)
        files = find_files(settings)
        with pytest.raises(ConfigError, match=message):
            list(read_unit(files, cut_units(files)[0], settings))
        if path.suffix == ".parquet":
            with pytest.raises(ConfigError, match=message):
                cut_units(files, text_field=field)


@pytest.mark.parametrize("kind", [*STRING_TYPES[:3], *BINARY_TYPES], ids=str)
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_invalid_utf8_is_rejected_row_by_row(read_all, tmp_path: Path, suffix: str, kind):
    binary = {
        pa.string(): pa.binary(),
        pa.large_string(): pa.large_binary(),
        pa.string_view(): pa.binary_view(),
    }
    values = [b"good", b"bad \xff", None, "é".encode() * 20, b"\xe8\xaa" * 20]
    array = pa.array(values, type=binary.get(kind, kind)).view(kind)
    path = tmp_path / f"a.{suffix}"
    (write_parquet if suffix == "parquet" else write_arrow)(path, pa.table({"text": array}))
    found = read_all(path)
    assert found.documents == [(0, 0, "good"), (0, 3, "é" * 20)]
    assert found.rejects == [(0, 1, "invalid-utf8"), (0, 2, "null-text"), (0, 4, "invalid-utf8")]
    assert "0xff at byte 4" in found.details[0]


def test_invalid_utf8_in_a_dictionary_is_rejected_row_by_row(read_all, tmp_path: Path):
    words = pa.array([b"good", b"\xff"]).view(pa.string())
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int8()), words)
    found = read_all(write_arrow(tmp_path / "a.arrow", pa.table({"text": array})))
    assert found.documents == [(0, 0, "good"), (0, 2, "good")]
    assert found.rejects == [(0, 1, "invalid-utf8")]


@pytest.mark.parametrize("limit", [20, 1 << 20])
def test_a_row_over_the_limit_is_rejected_alone(read_all, tmp_path: Path, limit: int):
    texts = ["one", "x" * (limit + 1), "y" * limit, "two"]
    path = write_parquet(tmp_path / "a.parquet", text_table(texts))
    found = read_all(path, max_document_bytes=limit)
    assert found.texts == ["one", "y" * limit, "two"]
    assert found.rejects == [(0, 1, "too-long")]


def test_damage_in_a_row_group_leaves_the_others(read_all, tmp_path: Path):
    path = write_parquet(
        tmp_path / "a.parquet",
        text_table(TEXTS),
        write_page_checksum=True,
        compression="none",
        use_dictionary=False,
    )
    chunk = pq.read_metadata(path).row_group(1).column(1)
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset + chunk.total_compressed_size - 9] ^= 1
    path.write_bytes(data)
    for unit_bytes in (1, 1 << 20):
        found = read_all(path, unit_bytes=unit_bytes)
        assert found.rejects == [(0, 40, "cut-stream")]
        assert found.documents == [(0, r, t) for r, t in enumerate(TEXTS) if not 40 <= r < 80]


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_cut_file_is_a_reject(read_all, tmp_path: Path, suffix: str, is_stream: bool):
    path = tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        write_parquet(path, text_table(TEXTS))
    else:
        write_arrow(path, text_table(TEXTS), is_stream=is_stream)
    whole = path.read_bytes()
    for cut in range(0, len(whole) - 20, 997):
        path.write_bytes(whole[:cut])
        found = read_all(path)
        assert [reason for _, _, reason in found.rejects] == ["cut-stream"]
        assert found.texts == TEXTS[: len(found.texts)]
        assert found.rejects[0][1] == len(found.texts)


def test_offsets_outside_the_data_do_not_reach_memory(read_all, tmp_path: Path):
    offsets = pa.py_buffer(bytes([0, 0, 0, 0, 2, 0, 0, 0, 255, 255, 255, 15]))
    sound = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"ok")])
    path = write_arrow(tmp_path / "a.arrow", pa.table({"text": sound}), is_stream=True)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"\0\0\0\0\2\0\0\0", b"\0\0\0\0\xff\xff\xff\x0f"))
    assert path.read_bytes() != data
    assert read_all(path).rejects == [(0, 0, "cut-stream")]


def test_indices_outside_the_dictionary_do_not_reach_memory(read_all, tmp_path: Path):
    indices = pa.array([0x01020304, 0, 0], pa.int32())
    array = pa.DictionaryArray.from_arrays(indices, pa.array(["a"]), safe=False)
    path = write_arrow(tmp_path / "a.arrow", pa.table({"text": array}))
    assert read_all(path).rejects == [(0, 0, "cut-stream")]


def test_an_empty_table_has_no_documents(read_all, tmp_path: Path):
    found = read_all(
        write_parquet(tmp_path / "a.parquet", text_table([], pa.string())),
        write_arrow(tmp_path / "b.arrow", text_table([], pa.string())),
    )
    assert found.documents == found.rejects == []


def test_a_missing_pyarrow_says_how_to_get_it(tmp_path: Path, monkeypatch):
    path = write_parquet(tmp_path / "a.parquet", text_table(TEXTS))
    files = find_files(SourceSettings(places=(str(path),)))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match="Parquet") as caught:
        cut_units(files)
    assert caught.value.hint == 'pip install "tokenmill[parquet]"'


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_file_that_changes_after_it_was_listed_is_an_error(tmp_path: Path, suffix: str):
    path = tmp_path / f"a.{suffix}"
    write = write_parquet if suffix == "parquet" else write_arrow
    write(path, text_table(TEXTS))
    settings = SourceSettings(places=(str(path),))
    files = find_files(settings)
    units = cut_units(files)
    write(path, text_table(TEXTS[:3]))
    with pytest.raises(StorageError, match="when it was listed"):
        list(read_unit(files, units[0], settings))
