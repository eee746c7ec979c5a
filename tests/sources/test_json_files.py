"""JSON files: elements of an array or values in a row, read in pieces."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

texts = st.text(alphabet='a"\\{}[],: \né語😀', max_size=12)
documents = st.one_of(
    texts,
    st.builds(lambda text, other: {"x": other, "text": text}, texts, st.recursive(texts, st.lists)),
)


@settings(max_examples=80, deadline=None)
@given(
    values=st.lists(documents, max_size=6),
    indent=st.sampled_from([None, 0, 2]),
    ascii_only=st.booleans(),
    is_array=st.booleans(),
    batch_bytes=st.sampled_from([1, 2, 5, 1 << 20]),
)
def test_elements_come_out_as_they_went_in(
    read_all, values, indent: int | None, ascii_only: bool, is_array: bool, batch_bytes: int
):
    if is_array:
        content = json.dumps(values, indent=indent, ensure_ascii=ascii_only)
    else:
        content = "\n".join(json.dumps(v, indent=indent, ensure_ascii=ascii_only) for v in values)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokenmill.sources.json_files.BATCH_BYTES", batch_bytes)
        path = Path(folder, "a.json")
        path.write_bytes(b"\xef\xbb\xbf" * (batch_bytes == 2) + content.encode())
        found = read_all(path, format="json")
    expected = [value if isinstance(value, str) else value["text"] for value in values]
    assert found.texts == expected
    assert found.positions == list(range(len(expected)))
    assert not found.rejects


@settings(max_examples=200, deadline=None)
@given(
    content=st.lists(st.sampled_from([*'[]{},:"\\ \n1', '"text"', '{"text":"a"}']), max_size=12),
    batch_bytes=st.sampled_from([1, 3, 1 << 20]),
)
def test_any_content_is_read_to_its_end_and_judged_like_the_reference(
    read_all, content: list[str], batch_bytes: int
):
    data = "".join(content)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokenmill.sources.json_files.BATCH_BYTES", batch_bytes)
        path = Path(folder, "a.json")
        path.write_text(data, encoding="utf-8")
        found = read_all(path, format="json")
    try:
        value = json.loads(data)
    except ValueError:
        return
    values = value if isinstance(value, list) else [value]
    for position, element in enumerate(values):
        text = element.get("text") if isinstance(element, dict) else element
        if isinstance(text, str):
            assert (0, position, text) in found.documents
        else:
            assert position in [where for _, where, _ in found.rejects]
    assert len(found.documents) + len(found.rejects) == len(values)


@pytest.mark.parametrize(
    ("content", "expected", "rejects"),
    [
        ("", [], []),
        (" \n", [], []),
        ("[]", [], []),
        ('{"text": "a"}', [(0, "a")], []),
        ('{\n  "text": "a"\n}\n', [(0, "a")], []),
        ('"a"', [(0, "a")], []),
        ('["a", {"text": "b"}]', [(0, "a"), (1, "b")], []),
        ('{"text":"a"}{"text":"b"}', [(0, "a"), (1, "b")], []),
        ('["a",, "b"]', [(0, "a"), (2, "b")], [(1, "bad-json")]),
        ('["a",]', [(0, "a")], [(1, "bad-json")]),
        ("[,]", [], [(0, "bad-json"), (1, "bad-json")]),
        ('["a" "b", "c"]', [(1, "c")], [(0, "bad-json")]),
        ('["a"', [], [(0, "bad-json")]),
        ('["a", ', [(0, "a")], [(1, "bad-json")]),
        ('["a"] x', [(0, "a")], [(1, "bad-json")]),
        ('["a"}, "b"]', [(1, "b")], [(0, "bad-json")]),
        ('[{"text": "a"', [], [(0, "bad-json")]),
        ('{"text": "a"', [], [(0, "bad-json")]),
        ('["a', [], [(0, "bad-json")]),
        ('[null, 1, true, [], "a"]', [(4, "a")], [(i, "not-an-object") for i in range(4)]),
        ('[{"text": null}, {}, {"text": 1}]', [], [(0, "null"), (1, "missing"), (2, "not")]),
        ('["\\ud800", "\\ud83d\\ude00"]', [(1, "😀")], [(0, "lone-surrogate")]),
        ("nonsense", [], [(0, "bad-json")]),
        ('} "a"', [(1, "a")], [(0, "bad-json")]),
    ],
)
def test_faults_are_rejected_in_their_place(read_all, tmp_path: Path, content, expected, rejects):
    path = tmp_path / "a.json"
    path.write_text(content, encoding="utf-8")
    found = read_all(path)
    assert [(position, text) for _, position, text in found.documents] == expected
    assert [position for _, position, _ in found.rejects] == [position for position, _ in rejects]
    for (_, _, reason), (_, prefix) in zip(found.rejects, rejects, strict=True):
        assert reason.startswith(prefix)


@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize("is_closed", [True, False])
def test_depth_is_no_danger(read_all, tmp_path: Path, opening: str, is_closed: bool):
    closing = {"[": "]", '{"a":': "}"}[opening]
    deep = opening * 100_000 + "1" + closing * 100_000 * is_closed
    path = tmp_path / "a.json"
    path.write_text(f'["before", {deep}, "after"]', encoding="utf-8")
    found = read_all(path)
    if is_closed:
        assert found.documents == [(0, 0, "before"), (0, 2, "after")]
    else:
        assert found.documents == [(0, 0, "before")]
    assert [position for _, position, _ in found.rejects] == [1]


@pytest.mark.parametrize("batch_bytes", [1, 7, 1 << 20])
def test_an_element_over_the_limit_is_passed_over_to_its_end(
    read_all, tmp_path: Path, monkeypatch, batch_bytes: int
):
    monkeypatch.setattr("tokenmill.sources.json_files.BATCH_BYTES", batch_bytes)
    path = tmp_path / "a.json"
    # With all lengths, so that data is let go of at each place among backslashes and quotes.
    hostile = ["x" * size + "\\" * (size % 3) + '", ["' + "x" * 40 for size in range(40)]
    path.write_text(json.dumps(["a", *hostile, "b"]), encoding="utf-8")
    found = read_all(path, max_document_bytes=30)
    assert found.documents == [(0, 0, "a"), (0, 41, "b")]
    assert found.rejects == [(0, position, "too-long") for position in range(1, 41)]


def test_a_json_file_with_one_object_per_line_is_jsonl(read_all, tmp_path: Path):
    path = tmp_path / "a.json"
    path.write_text('{"text": "a"}\n{"text": "b"}\n', encoding="utf-8")
    assert read_all(path, unit_bytes=14).documents == [(0, 0, "a"), (0, 14, "b")]
    assert read_all(path, format="json").documents == [(0, 0, "a"), (0, 1, "b")]
    path.write_text('{"text":\n"a"}\n{"text": "b"}\n', encoding="utf-8")
    assert read_all(path).documents == [(0, 0, "a"), (0, 1, "b")]
