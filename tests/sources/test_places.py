"""What places stand for: described folders, corpora, splits of folders, names in a catalog."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokenmill.errors import ConfigError
from tokenmill.sources import (
    Description,
    SourceFile,
    SourceSettings,
    TokenizedInfo,
    add_to_catalog,
    cut_units,
    find_files,
    read_catalog,
    read_unit,
    resolve_name,
    write_description,
)


def files(*places: str | Path, **options: str) -> list[SourceFile]:
    return find_files(SourceSettings(places=tuple(map(str, places)), **options))  # pyright: ignore[reportArgumentType]


def texts(*places: str | Path, **options: str) -> list[str]:
    """Read everything that places stand for."""
    settings = SourceSettings(places=tuple(map(str, places)), **options)  # pyright: ignore[reportArgumentType]
    found = find_files(settings)
    return [
        str(text)
        for unit in cut_units(found, text_field=settings.text_field)
        for batch in read_unit(found, unit, settings)
        for text in batch.texts
    ]


def write(path: Path, *lines: str, field: str = "text") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({field: line}) + "\n" for line in lines))


@pytest.fixture
def corpora(tmp_path: Path) -> Path:
    for name in ("en", "de"):
        write(tmp_path / "dumps" / name / "a.jsonl", f"{name} one", f"{name} two", field="body")
    write(tmp_path / "other" / "x.jsonl", "elsewhere", field="body")
    return tmp_path


def describe(folder: Path, **changes: object) -> None:
    values = {"name": "x", "content_field": "body", **changes}
    write_description(folder / "metadata.yaml", Description(**values), replace=True)  # pyright: ignore[reportArgumentType]


def test_corpora_in_folders(corpora: Path):
    describe(
        corpora,
        corpuses=("de", "en"),
        corpus_separation_strategy="data_dirs",
        corpus_data_dir_parent="dumps",
    )
    assert texts(corpora) == ["de one", "de two", "en one", "en two"]
    assert texts(f"{corpora}:en") == ["en one", "en two"]
    assert texts(f"{corpora}:en", f"{corpora}:de") == ["en one", "en two", "de one", "de two"]
    with pytest.raises(ConfigError, match="no corpus 'fr'; the description lists de, en"):
        files(f"{corpora}:fr")
    with pytest.raises(ConfigError, match="is read twice"):
        files(corpora, f"{corpora}:en")


def test_corpora_as_configurations(corpora: Path):
    (corpora / "README.md").write_text(
        "---\nconfigs:\n- {config_name: english, data_files: 'dumps/en/*.jsonl'}\n"
        "- {config_name: german, data_files: 'dumps/de/*.jsonl'}\n---\n"
    )
    describe(corpora, corpuses=("english", "german"), corpus_separation_strategy="configs")
    assert texts(corpora) == ["en one", "en two", "de one", "de two"]
    assert texts(f"{corpora}:german") == ["de one", "de two"]


def test_configurations_can_be_folders(corpora: Path):
    describe(
        corpora,
        dataset_path="dumps",
        corpuses=("en", "de"),
        corpus_separation_strategy="configs",
    )
    assert texts(f"{corpora}:de") == ["de one", "de two"]
    assert texts(corpora) == ["en one", "en two", "de one", "de two"]


def test_no_corpus_and_one_corpus_are_the_whole_folder(corpora: Path):
    describe(corpora)
    everything = ["de one", "de two", "en one", "en two", "elsewhere"]
    assert texts(corpora) == everything
    describe(corpora, corpuses=("all-of-it",))
    assert texts(corpora) == everything
    assert texts(f"{corpora}:all-of-it") == everything
    with pytest.raises(ConfigError, match="no corpus"):
        files(f"{corpora}:en")


def test_one_corpus_can_be_a_folder(corpora: Path):
    describe(
        corpora,
        corpuses=("en",),
        corpus_separation_strategy="data_dirs",
        corpus_data_dir_parent="dumps",
    )
    assert texts(corpora) == texts(f"{corpora}:en") == ["en one", "en two"]


def test_the_data_can_be_elsewhere(corpora: Path, tmp_path: Path):
    notes = tmp_path / "notes"
    notes.mkdir()
    describe(notes, dataset_path=str(corpora / "other"))
    assert texts(notes) == ["elsewhere"]
    describe(notes, dataset_path="../other/x.jsonl")
    assert texts(notes) == ["elsewhere"]


def test_a_field_that_the_user_names_goes_first(corpora: Path):
    describe(corpora / "other")
    write(corpora / "other" / "x.jsonl", "mine", field="mine")
    assert texts(corpora / "other", text_field="mine") == ["mine"]


def test_a_missing_folder_of_a_corpus_is_an_error(corpora: Path):
    describe(corpora, corpuses=("en", "fr"), corpus_separation_strategy="data_dirs")
    with pytest.raises(ConfigError, match="the corpus 'en' is not there: no folder"):
        files(corpora)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data_content": "image"}, "holds image, expected text"),
        ({"tokenized_info": TokenizedInfo(tokenizer="gpt2")}, "tokenized already, with gpt2"),
    ],
)
def test_what_is_not_raw_text_is_refused(corpora: Path, changes: dict[str, object], message: str):
    describe(corpora, **changes)
    with pytest.raises(ConfigError, match=message):
        files(corpora)


def test_a_colon_in_a_path_is_a_path(tmp_path: Path):
    folder = tmp_path / "a:b"
    write(folder / "c:d.jsonl", "text")
    assert texts(folder) == texts(folder / "c:d.jsonl") == ["text"]
    with pytest.raises(ConfigError, match="no such file or folder"):
        files(f"{tmp_path}/missing:corpus")


# -- folders in the layout of `datasets`


def test_a_split_of_a_folder(tmp_path: Path):
    write(tmp_path / "train.jsonl", "a")
    write(tmp_path / "val.jsonl", "b")
    write(tmp_path / "deep" / "test" / "x.jsonl", "c")
    assert texts(tmp_path, split="train") == ["a"]
    assert texts(tmp_path, split="validation") == ["b"]
    assert texts(tmp_path, split="test") == ["c"]
    assert len(texts(tmp_path)) == len(texts(tmp_path, split="all")) == 3
    with pytest.raises(ConfigError, match="--split chooses in a folder"):
        files(tmp_path / "train.jsonl", split="train")


def test_a_configuration_and_a_split_of_a_folder(tmp_path: Path):
    write(tmp_path / "en" / "train.jsonl", "en train")
    write(tmp_path / "en" / "test.jsonl", "en test")
    write(tmp_path / "de" / "train.jsonl", "de train")
    assert texts(f"{tmp_path}:en", split="test") == ["en test"]
    assert texts(f"{tmp_path}:de") == ["de train"]
    with pytest.raises(ConfigError, match="no folder 'fr'"):
        files(f"{tmp_path}:fr")


def test_a_dataset_that_was_saved_to_disk(tmp_path: Path):
    """What `DatasetDict.save_to_disk` leaves, with a cache file that a later `map` adds."""
    pa = pytest.importorskip("pyarrow")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    for split in ("train", "test"):
        folder = tmp_path / split
        folder.mkdir()
        for name, text in (("data-00000-of-00001", split), ("cache-5f0c", "again")):
            table = pa.table({"text": [text]})
            with pa.ipc.new_stream(folder / f"{name}.arrow", table.schema) as writer:
                writer.write_table(table)
        (folder / "dataset_info.json").write_text("{}")
        state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_split": split}
        (folder / "state.json").write_text(json.dumps(state))
    assert texts(tmp_path, split="train") == ["train"]
    assert texts(tmp_path, split="test") == ["test"]
    assert texts(tmp_path / "train") == ["train"]
    assert sorted(texts(tmp_path)) == ["test", "train"]


# -- catalogs


@pytest.fixture
def catalog(corpora: Path) -> Path:
    path = corpora / "lists" / "catalog.json"
    described = Description(
        name="",
        dataset_path="../dumps",
        content_field="body",
        corpuses=("en", "de"),
        corpus_separation_strategy="data_dirs",
    )
    add_to_catalog(path, "wiki", described)
    info = TokenizedInfo(tokenizer="gpt2")
    stored = Description(name="", dataset_path="/stores/wiki", tokenized_info=info)
    add_to_catalog(path, "wiki-gpt2", stored)
    return path


def test_a_name_in_a_catalog_is_a_source(catalog: Path):
    assert texts("wiki", catalog=str(catalog)) == ["en one", "en two", "de one", "de two"]
    assert texts("wiki:de", catalog=str(catalog)) == ["de one", "de two"]
    with pytest.raises(ConfigError, match="tokenized already"):
        files("wiki-gpt2", catalog=str(catalog))
    with pytest.raises(ConfigError, match="no such file or folder"):
        files("wikis", catalog=str(catalog))


def test_a_name_that_is_also_a_path_is_refused(
    catalog: Path, corpora: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(corpora)
    write(corpora / "wiki" / "a.jsonl", "local")
    with pytest.raises(ConfigError, match=r"\./wiki for the path"):
        files("wiki", catalog=str(catalog))
    assert texts("./wiki", catalog=str(catalog)) == ["local"]
    assert texts("wiki") == ["local"]


def test_names_are_resolved_for_others(catalog: Path, corpora: Path):
    found = resolve_name("wiki-gpt2", catalog)
    assert (found.path, found.is_tokenized, found.corpus) == ("/stores/wiki", True, None)
    found = resolve_name("wiki:en", catalog)
    assert (found.corpus, found.is_tokenized) == ("en", False)
    assert Path(found.path).resolve() == corpora / "dumps"
    with pytest.raises(ConfigError, match="no dataset 'wikki'") as caught:
        resolve_name("wikki", catalog)
    assert "did you mean 'wiki'?" in str(caught.value)


def test_a_catalog_that_users_bring_is_read(tmp_path: Path):
    path = tmp_path / "store.json"
    path.write_text(json.dumps({"a": {"name": "a", "dataset_path": "/a", "corpuses": []}}))
    assert read_catalog(path)["a"].dataset_path == "/a"


@pytest.mark.parametrize(
    "text", ["[]", '{"a": 5}', '{"a": {"corpora": []}}', "{", '{"a": {}, "a": {}}']
)
def test_a_broken_catalog_is_refused(tmp_path: Path, text: str):
    path = tmp_path / "catalog.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"catalog\.json"):
        read_catalog(path)


@pytest.mark.parametrize("name", ["", "a/b", "a:b", " a", ".a"])
def test_a_name_that_could_be_a_path_is_refused(tmp_path: Path, name: str):
    with pytest.raises(ConfigError, match="not a name for a dataset"):
        add_to_catalog(tmp_path / "c.json", name, Description(name="x"))
    assert not list(tmp_path.iterdir())


def test_a_name_is_not_taken_over_by_accident(catalog: Path):
    with pytest.raises(ConfigError, match="is in it already"):
        add_to_catalog(catalog, "wiki", Description(name="", dataset_path="/new"))
    assert resolve_name("wiki", catalog).path != "/new"
    add_to_catalog(catalog, "wiki", Description(name="", dataset_path="/new"), replace=True)
    assert resolve_name("wiki", catalog).path == "/new"
    assert list(read_catalog(catalog)) == ["wiki", "wiki-gpt2"]
