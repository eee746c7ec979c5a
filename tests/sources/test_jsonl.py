"""JSON Lines: the fast way and the careful way agree, and each fault has its own reason."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

LINES = [
    b'{"text": "a"}',
    b'{"id": 1, "text": "b\\nc \\u00e9 \\ud83d\\ude00"}',
    '{"text": "é 語", "t": ["{", "}"]}'.encode(),
    b'{"text": ""}',
    b'  {"text": "with space around"}\t',
    b'{"text": "a", "text": "last one wins"}',
    b'{"text": "a"}{"text": "b"}',
    b'{"text":',
    b'"c"}',
    b'{"text": "d", "x": {}',
    b"}",
    b'{"text": null}',
    b'{"text": 3}',
    b"{}",
    b"[]",
    b'"text"',
    b"nonsense",
    b"",
    b"  ",
    b"\r",
    b'{"text": "\\ud800"}',
    b'{"text": "e", "other": "\\udc00"}',
]


def naive_text(line: bytes) -> str | None:
    try:
        value = json.loads(line)["text"]
        value.encode()
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return value


def naive_read(data: bytes):
    documents, rejects, num_blank, start = [], [], 0, 0
    for line in data.split(b"\n")[: -1 if data.endswith(b"\n") or not data else None]:
        content = line.removeprefix(b"\xef\xbb\xbf") if start == 0 else line
        if not content.strip():
            num_blank += 1
        elif (text := naive_text(content)) is None:
            rejects.append((0, start))
        else:
            documents.append((0, start, text))
        start += len(line) + 1
    return documents, rejects, num_blank


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(st.sampled_from(LINES), max_size=8),
    end=st.sampled_from([b"\n", b"\r\n"]),
    has_bom_and_final_end=st.tuples(st.booleans(), st.booleans()),
    batch_bytes=st.sampled_from([1, 16, 1 << 20]),
    step=st.integers(2, 9),
)
def test_lines_are_the_same_for_every_cut(
    read_all, lines, end: bytes, has_bom_and_final_end, batch_bytes: int, step: int
):
    has_bom, has_final_end = has_bom_and_final_end
    data = b"\xef\xbb\xbf" * has_bom + end.join(lines) + end * has_final_end
    documents, rejects, num_blank = naive_read(data)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokenmill.sources.blocks.BATCH_BYTES", batch_bytes)
        path = Path(folder, "a.jsonl")
        path.write_bytes(data)
        for unit_bytes in range(1, len(data) + step + 1, step):
            found = read_all(path, unit_bytes=unit_bytes)
            assert found.documents == documents
            assert sorted((file, position) for file, position, _ in found.rejects) == rejects
            assert found.num_blank == num_blank


def test_two_objects_on_a_line_do_not_make_up_for_one_on_two_lines(read_all, tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"} {"text": "b"}\n{"text":\n"c"}\n{"text": "d"}\n')
    found = read_all(path)
    assert found.documents == [(0, 42, "d")]
    assert found.rejects == [(0, 0, "bad-json"), (0, 28, "bad-json"), (0, 37, "not-an-object")]


@pytest.mark.parametrize(
    ("line", "reason", "detail"),
    [
        (b'{"text": "a"', "bad-json", "truncated"),
        (b'{"text": "a"} x', "bad-json", "trailing"),
        (b'{"text": "a\x00b"}', "bad-json", "invalid character"),
        (b'{"text": 1, oops}', "bad-json", "byte 12"),
        (b"{'text': 'a'}", "bad-json", "byte 1"),
        (b'{"text": "a", "n": NaN}', "bad-json", "invalid character"),
        (b'{"text": "a\xffb"}', "invalid-utf8", "0xff at byte 11 of the document"),
        (b'{"text": "\xed\xa0\x80"}', "invalid-utf8", "0xed at byte 10 of the document"),
        (b'{"text": "\\ud800"}', "lone-surrogate", "half"),
        (b'{"text": "\\udc00\\ud800"}', "lone-surrogate", "half"),
        (b'{"TEXT": "a"}', "missing-text", "no field 'text'"),
        (b'{"text": null}', "null-text", "'text' is null"),
        (b'{"text": 3.5}', "not-text", "a number"),
        (b'{"text": ["a"]}', "not-text", "an array"),
        (b'{"text": {"a": 1}}', "not-text", "an object"),
        (b'{"text": true}', "not-text", "true"),
        (b'"a"', "not-an-object", "a string"),
        (b"17", "not-an-object", "a number"),
        (b"null", "not-an-object", "null"),
        (b'[{"text": "a"}]', "not-an-object", "an array"),
        (b'{"text": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "bad-json", "deep"),
        (b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "bad-json", "deep"),
        (b'{"a": ' * 100_000, "bad-json", "deep"),
    ],
)
def test_each_fault_has_its_reason_and_its_place(
    read_all, tmp_path: Path, line: bytes, reason: str, detail: str
):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "before"}\n' + line + b'\n{"text": "after"}\n')
    found = read_all(path)
    assert found.texts == ["before", "after"]
    assert found.rejects == [(0, 19, reason)]
    assert detail in found.details[0]


@pytest.mark.parametrize(
    "line",
    [
        '{"text": "ok", "n": 1e99999}',
        '{"text": "ok", "n": ' + "9" * 10_000 + "}",
        '{"text": "ok", "name": "\\ud800 \\\\ud800 \\ud83d\\ude00"}',
        '{"te\\u0078t": "ok"}',
        '{"text": "bad", "text": "ok"}',
        '{"text": "ok", "x": ' + "[" * 300 + "]" * 300 + "}",
    ],
)
def test_odd_but_valid_lines_are_documents(read_all, tmp_path: Path, line: str):
    path = tmp_path / "a.jsonl"
    path.write_text(line + "\n", encoding="utf-8")
    found = read_all(path)
    assert found.documents == [(0, 0, "ok")]
    assert not found.rejects


def test_depth_is_judged_alike_from_deep_and_shallow_callers(read_all, tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "ok", "x": ' + "[" * 900 + "]" * 900 + "}\n", encoding="utf-8")

    def from_depth(depth: int):
        return from_depth(depth - 1) if depth else read_all(path).texts

    assert from_depth(0) == from_depth(400) == ["ok"]


def test_escaped_text_comes_out_as_unicode(read_all, tmp_path: Path):
    text = 'a\nb\t"c" \\ é 語 😀 \x00 \u2028'
    path = tmp_path / "a.jsonl"
    for ascii_only in (True, False):
        path.write_text(json.dumps({"text": text}, ensure_ascii=ascii_only), encoding="utf-8")
        assert read_all(path).texts == [text]


def test_a_nested_field_is_reached_by_its_path(read_all, tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"a": {"b": {"c": "deep"}, "text": 1}, "text": 2}\n'
        '{"a": {"b": {}}}\n{"a": null}\n{"a": 3}\n'
        '{"a": {"b": {"c": null}}}\n{"a": {"b": {"c": 1}}}\n',
        encoding="utf-8",
    )
    found = read_all(path, text_field="a.b.c")
    assert found.texts == ["deep"]
    reasons = [reason for _, _, reason in found.rejects]
    assert reasons == ["missing-text", "null-text", "missing-text", "null-text", "not-text"]
    assert found.details[0] == "there is no field 'a.b.c'"


def test_a_fault_does_not_change_its_neighbours(read_all, tmp_path: Path):
    lines = [json.dumps({"text": f"{number} é" * 20}) for number in range(20000)]
    lines[7000] = "{"
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    found = read_all(path, unit_bytes=1 << 20)
    expected = [f"{number} é" * 20 for number in range(20000) if number != 7000]
    assert found.texts == expected
    assert found.rejects == [(0, sum(len(line) + 1 for line in lines[:7000]), "bad-json")]


def test_a_line_over_the_limit_is_rejected_alone(read_all, tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n{"text": "ab"}\n{"text": "b"}\n')
    found = read_all(path, max_document_bytes=13)
    assert found.texts == ["a", "b"]
    assert found.rejects == [(0, 14, "too-long")]
