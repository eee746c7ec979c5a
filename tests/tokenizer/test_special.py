from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tokenmill.errors import TokenizerError
from tokenmill.tokenizer import SpecialIds, Tokenizer, load_definition, load_tokenizer
from tokenmill.tokenizer.special import find_special_ids

ADDED = {"<|endoftext|>": 10, "<s>": 11, "</s>": 12, "<pad>": 13, "<|im_end|>": 14}


def write(folder: Path, **files: dict[str, Any]) -> Path:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_well_known_names_serve_where_nothing_else_is_said():
    assert find_special_ids(ADDED, {}) == SpecialIds(bos=11, eos=10, pad=13)
    assert find_special_ids({"</s>": 2, "<s>": 1}, {}) == SpecialIds(bos=1, eos=2)
    assert find_special_ids({"[CLS]": 1, "[SEP]": 2, "<|im_end|>": 3}, {}) == SpecialIds()


def test_an_ordinary_token_of_a_well_known_name_is_not_taken():
    assert find_special_ids({}, {"</s>": 500}) == SpecialIds()


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer_config": {"eos_token": "<|im_end|>"}}, SpecialIds(bos=11, eos=14, pad=13)),
        (
            {"tokenizer_config": {"eos_token": {"content": "</s>"}, "bos_token": None}},
            SpecialIds(bos=None, eos=12, pad=13),
        ),
        ({"special_tokens_map": {"eos_token": "</s>"}}, SpecialIds(bos=11, eos=12, pad=13)),
        (
            {
                "tokenizer_config": {"eos_token": "<|im_end|>"},
                "special_tokens_map": {"eos_token": "</s>", "pad_token": "ordinary"},
            },
            SpecialIds(bos=11, eos=14, pad=99),
        ),
        (
            {"generation_config": {"eos_token_id": [12, 14], "bos_token_id": 10}},
            SpecialIds(bos=10, eos=12, pad=13),
        ),
        (
            {"tokenizer_config": {"pad_token": "[PAD]"}, "generation_config": {"pad_token_id": 14}},
            SpecialIds(bos=11, eos=10, pad=14),
        ),
    ],
)
def test_the_files_beside_a_tokenizer_come_first(
    files: dict[str, Any], expected: SpecialIds, tmp_path: Path
):
    assert find_special_ids(ADDED, {"ordinary": 99}, write(tmp_path, **files)) == expected


def test_a_broken_file_beside_a_tokenizer_is_named(tmp_path: Path):
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json"):
        find_special_ids(ADDED, {}, tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(TokenizerError, match="expected an object"):
        find_special_ids(ADDED, {}, tmp_path)


def test_a_folder_and_the_file_in_it_have_the_same_special_ids(
    tmp_path: Path, small_tokenizer: Tokenizer
):
    (tmp_path / "tokenizer.json").write_bytes(small_tokenizer.definition)
    (tmp_path / "other.json").write_bytes(small_tokenizer.definition)
    write(tmp_path, tokenizer_config={"bos_token": "<|endoftext|>", "eos_token": None})
    expected = SpecialIds(bos=2256)
    assert load_tokenizer(tmp_path).special_ids == expected
    assert load_tokenizer(tmp_path / "tokenizer.json").special_ids == expected
    assert load_tokenizer(tmp_path / "other.json").special_ids == SpecialIds(eos=2256)


def test_kept_special_ids_come_back_with_the_definition(tmp_path: Path, small_tokenizer: Tokenizer):
    (tmp_path / "tokenizer.json").write_bytes(small_tokenizer.definition)
    write(tmp_path, tokenizer_config={"bos_token": "<|endoftext|>", "eos_token": None})
    loaded = load_tokenizer(tmp_path)
    again = load_definition(
        loaded.definition, loaded.definition_name, special_ids=loaded.special_ids
    )
    assert again.special_ids == loaded.special_ids
    assert (again.bos_id, again.eos_id, again.pad_id) == (2256, None, None)
    assert again.fingerprint == loaded.fingerprint


def test_a_special_id_outside_the_vocabulary_is_refused(tmp_path: Path, small_tokenizer: Tokenizer):
    (tmp_path / "tokenizer.json").write_bytes(small_tokenizer.definition)
    write(tmp_path, generation_config={"eos_token_id": 5000})
    with pytest.raises(TokenizerError, match="the eos id is 5000, but ids end at 2256"):
        load_tokenizer(tmp_path)
