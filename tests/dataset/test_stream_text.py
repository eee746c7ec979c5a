from __future__ import annotations

import json
import pickle
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokenmill.dataset import stream_text
from tokenmill.errors import BadDocumentError, ConfigError
from tokenmill.tokenizer import Tokenizer, load_tokenizer

EOS = 50256


@pytest.fixture(scope="module")
def gpt2() -> Tokenizer:
    return load_tokenizer("gpt2")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(3)
    paths = [folder / name for name in ("a.txt", "b.jsonl", "c.txt")]
    for number, path in enumerate(paths):
        lines = [f"{number}.{line} " + "word " * int(rng.integers(0, 40)) for line in range(40)]
        if path.suffix == ".jsonl":
            lines = [json.dumps({"text": text}) for text in lines]
        path.write_text("\n".join(lines) + "\n")
    return paths


def open_stream(corpus: Any, tokenizer: Tokenizer, context_length: int = 8, **options: Any) -> Any:
    options = {"output": "numpy", "unit_bytes": 700, "num_lanes": 6, **options}
    return stream_text(corpus, tokenizer, context_length, **options)


def key(row: Any) -> tuple[int, ...]:
    """A row as something to compare: its lane, its tokens and the last label."""
    return (int(row.cursors[0]), *row.token_ids.tolist(), *row.labels[-1:].tolist())


def all_rows(streams: list[Any], num_workers: int = 1) -> list[tuple[int, ...]]:
    return [
        key(row)
        for stream in streams
        for worker in range(num_workers)
        for row in stream.rows(worker, num_workers)
    ]


def documents_of(rows: list[Any], tokenizer: Tokenizer) -> list[str]:
    """Put documents together again from rows in the order of their lanes."""
    lanes: dict[int, list[int]] = {}
    for row in rows:
        length = int(row.attention_mask.sum())
        ids = lanes.setdefault(int(row.cursors[0]), [int(row.token_ids[0])])
        ids += row.labels[:length].tolist()
    texts: list[str] = []
    for ids in lanes.values():
        assert ids[-1] == EOS
        texts += tokenizer.decode(ids).removesuffix("<|endoftext|>").split("<|endoftext|>")
    return texts


def test_every_document_comes_exactly_once(corpus: list[Path], gpt2: Tokenizer):
    rows = list(open_stream(corpus, gpt2))
    expected = [
        json.loads(line)["text"] if path.suffix == ".jsonl" else line
        for path in corpus
        for line in path.read_text().splitlines()
    ]
    assert sorted(documents_of(rows, gpt2)) == sorted(expected)


def test_one_lane_keeps_the_order_of_documents(corpus: list[Path], gpt2: Tokenizer):
    rows = list(open_stream(corpus, gpt2, num_lanes=1))
    firsts = [text.split()[0] for text in documents_of(rows, gpt2)]
    assert firsts == [f"{number}.{line}" for number in range(3) for line in range(40)]


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize(("world_size", "num_workers"), [(1, 3), (2, 2), (3, 1), (5, 2), (6, 1)])
def test_ranks_and_workers_share_the_rows(
    corpus: list[Path], gpt2: Tokenizer, seed: int | None, world_size: int, num_workers: int
):
    options = {"seed": seed, "shuffle_rows": 24}
    whole = all_rows([open_stream(corpus, gpt2, **options)])
    ranks = [
        open_stream(corpus, gpt2, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]
    assert sorted(all_rows(ranks, num_workers)) == sorted(whole)


@given(data=st.data())
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_resume_with_other_ranks_continues_with_exactly_the_rest(
    corpus: list[Path], gpt2: Tokenizer, data: st.DataObject
):
    options: dict[str, Any] = {
        "seed": data.draw(st.sampled_from([None, 5])),
        "shuffle_rows": data.draw(st.sampled_from([6, 30])),
        "num_epochs": data.draw(st.sampled_from([1, 2])),
        "unit_bytes": data.draw(st.sampled_from([300, 2000])),
        "context_length": data.draw(st.sampled_from([3, 16, 100])),
        "pad_last": data.draw(st.booleans()),
    }
    whole = sorted(all_rows([open_stream(corpus, gpt2, **options)]))
    seen: list[tuple[int, ...]] = []
    states: Any = None
    for _ in range(2):
        world_size, num_workers = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
        ranks = [
            open_stream(corpus, gpt2, rank=rank, world_size=world_size, **options)
            for rank in range(world_size)
        ]
        for stream in ranks:
            if states is not None:
                stream.load_state_dict(states)
            for worker in range(num_workers):
                num_rows = data.draw(st.integers(0, 40))
                rows = stream.rows(worker, num_workers)
                seen += [key(row) for row in islice(rows, num_rows)]
        states = [json.loads(json.dumps(stream.state_dict())) for stream in ranks]
    last = open_stream(corpus, gpt2, **options)
    last.load_state_dict(states)
    rest = all_rows([last])
    assert sorted(seen + rest) == whole


def test_ranks_that_divide_the_lanes_make_the_same_global_order(
    corpus: list[Path], gpt2: Tokenizer
):
    whole = [key(row) for row in islice(open_stream(corpus, gpt2), 60)]
    for world_size in (2, 3, 6):
        ranks = [
            iter(open_stream(corpus, gpt2, rank=rank, world_size=world_size))
            for rank in range(world_size)
        ]
        assert [key(next(ranks[i % world_size])) for i in range(60)] == whole


def test_a_resume_keeps_the_order(corpus: list[Path], gpt2: Tokenizer):
    options = {"seed": 3, "num_epochs": None, "shuffle_rows": 40}
    whole = [key(row) for row in islice(open_stream(corpus, gpt2, **options), 900)]
    first = open_stream(corpus, gpt2, **options)
    begun = [key(row) for row in islice(first, 333)]
    second = open_stream(corpus, gpt2, **options)
    second.load_state_dict(first.state_dict())
    assert begun + [key(row) for row in islice(second, 900 - 333)] == whole


def test_a_resume_goes_past_many_documents_of_a_unit(tmp_path: Path, gpt2: Tokenizer):
    path = tmp_path / "a.txt"
    path.write_text("".join(f"{number}\n" for number in range(20_000)))  # more than one batch
    whole = [key(row) for row in stream_text(path, gpt2, 64, output="numpy")]
    for num_rows in (1, 300, len(whole) - 1):
        first = stream_text(path, gpt2, 64, output="numpy")
        list(islice(first, num_rows))
        second = stream_text(path, gpt2, 64, output="numpy")
        second.load_state_dict(first.state_dict())
        assert [key(row) for row in second] == whole[num_rows:]


def test_without_an_end_epochs_are_shuffled_anew_and_nothing_is_padded(
    corpus: list[Path], gpt2: Tokenizer
):
    rows = list(islice(open_stream(corpus, gpt2, seed=3, num_epochs=None), 3000))
    assert all(row.attention_mask.all() for row in rows)
    assert rows[-1].cursors[2] > 1


def test_a_seed_changes_the_order_and_nothing_else(corpus: list[Path], gpt2: Tokenizer):
    orders = [
        documents_of(list(open_stream(corpus, gpt2, **options)), gpt2)
        for options in ({}, {"seed": 1, "shuffle_rows": 1}, {"seed": 2, "shuffle_rows": 1})
    ]
    assert orders[0] != orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])
    first, second = (
        all_rows([open_stream(corpus, gpt2, num_lanes=1, seed=1, shuffle_rows=rows)])
        for rows in (1, 64)
    )
    assert first != second
    assert sorted(first) == sorted(second)


def test_ids_of_documents_and_positions_are_exact(tmp_path: Path, gpt2: Tokenizer):
    path = tmp_path / "a.txt"
    path.write_text("a b\nc\nd e f\n")
    rows = list(stream_text(path, gpt2, 5, output="numpy", mask_boundaries=True))
    a, b, c, d, e, f = (gpt2.encode(text)[0] for text in ("a", " b", "c", "d", " e", " f"))
    assert [row.token_ids.tolist() for row in rows] == [[a, b, EOS, c, EOS], [d, e, f, EOS, EOS]]
    assert rows[0].labels.tolist() == [b, EOS, -100, EOS, -100]
    assert rows[1].labels.tolist() == [e, f, EOS, -100, -100]
    assert rows[0].document_ids.tolist() == [0, 0, 0, 1, 1]
    assert rows[1].document_ids.tolist() == [0, 0, 0, -1, -1]
    assert rows[0].position_ids.tolist() == [0, 1, 2, 0, 1]
    assert rows[1].attention_mask.tolist() == [True, True, True, False, False]


def test_what_is_dropped_and_padded_is_counted(tmp_path: Path, gpt2: Tokenizer):
    path = tmp_path / "a.txt"
    path.write_text("a b c\n\nd e\n")  # 4 + 3 tokens
    dropping, padding = (
        stream_text(path, gpt2, 4, output="numpy", pad_last=pad_last) for pad_last in (False, True)
    )
    assert (len(list(dropping)), len(list(padding))) == (1, 2)
    assert (dropping.counts.num_dropped, dropping.counts.num_padded) == (2, 0)
    assert (padding.counts.num_dropped, padding.counts.num_padded) == (0, 2)
    assert (padding.counts.num_documents, padding.counts.num_blank) == (2, 1)
    assert padding.counts.num_tokens == 7


def test_broken_documents_stop_the_stream_or_are_counted(tmp_path: Path, gpt2: Tokenizer):
    path = tmp_path / "a.txt"
    path.write_bytes(b"good\n\xff\xfe\nalso good\n")
    with pytest.raises(BadDocumentError, match="invalid-utf8"):
        list(stream_text(path, gpt2, 4, output="numpy"))
    stream = stream_text(path, gpt2, 4, output="numpy", on_error="skip")
    assert documents_of(list(stream), gpt2) == ["good", "also good"]
    assert stream.counts.num_rejected == 1


def test_a_state_is_small_and_of_one_stream(corpus: list[Path], gpt2: Tokenizer):
    stream = open_stream(corpus, gpt2, num_lanes=32)
    list(islice(stream, 200))
    state = stream.state_dict()
    assert len(json.dumps(state, separators=(",", ":"))) < 1024
    for other in ({"context_length": 9}, {"seed": 1}, {"corpus": corpus[:2]}):
        options = {"corpus": corpus, "num_lanes": 32, **other}
        with pytest.raises(ConfigError, match="another stream"):
            open_stream(options.pop("corpus"), gpt2, **options).load_state_dict(state)


def test_too_many_ranks_and_wrong_settings_are_refused(tmp_path: Path, gpt2: Tokenizer):
    path = tmp_path / "a.txt"
    path.write_text("a\n")
    for options in ({"world_size": 2}, {"rank": 1}, {"num_epochs": 0}, {"on_error": "hope"}):
        with pytest.raises(ConfigError):
            stream_text(path, gpt2, 4, output="numpy", **options)  # pyright: ignore[reportArgumentType]


def test_a_pickled_stream_goes_on_where_it_was(corpus: list[Path], gpt2: Tokenizer):
    stream = open_stream(corpus, gpt2)
    list(islice(stream, 50))
    copy = pickle.loads(pickle.dumps(stream))
    assert all_rows([copy]) == all_rows([stream])


@pytest.mark.parametrize(("num_workers", "batch_size"), [(0, None), (2, None), (2, 4)])
def test_a_data_loader_resumes_from_the_batches_that_were_used(
    corpus: list[Path], gpt2: Tokenizer, num_workers: int, batch_size: int | None
):
    data = pytest.importorskip("torch.utils.data")

    def load(stream: Any, workers: int) -> Any:
        loader_size = 4 if batch_size is None else None
        return data.DataLoader(
            stream, batch_size=loader_size, num_workers=workers, collate_fn=stream.collate
        )

    whole = [key(row) for row in open_stream(corpus, gpt2)]
    stream = open_stream(corpus, gpt2, output="torch", batch_size=batch_size)
    seen: list[tuple[int, ...]] = []
    batches = load(stream, num_workers)
    for batch in islice(batches, 7):
        stream.note(batch)
        seen += [key(batch.row(index)) for index in range(len(batch.token_ids))]
    again = open_stream(corpus, gpt2, output="torch", batch_size=batch_size)
    again.load_state_dict(stream.state_dict())
    for batch in load(again, 2 - num_workers // 2):
        seen += [key(batch.row(index)) for index in range(len(batch.token_ids))]
    assert sorted(seen) == sorted(whole)
