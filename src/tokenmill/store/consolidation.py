"""One pass over the tokens of a split: the tokens file and the sample ids, resumable.

    .consolidate/train.tokens       ids written so far
    .consolidate/train.sample_ids   and the ids of their samples
    .consolidate/train.json         checksums of the stretches that are known to be on disk

A stretch counts once its bytes are synced and its checksums are in the JSON file. Hash states
cannot be stored, so a run that continues reads those stretches again; it writes none of them again
and hashes no sample again, which is where the time goes.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from tokenmill.errors import DamageError
from tokenmill.files import OutputFile, atomic_write, storage_error, sync_folder
from tokenmill.progress import Event, Report
from tokenmill.store.format import SAMPLE_ID_DTYPE, sample_ids_name, tokens_name
from tokenmill.store.metadata import ConsolidatedEntry, FileEntry
from tokenmill.store.sample_ids import sample_ids

WORK_FOLDER: Final = ".consolidate"
LOCK_NAME: Final = f"{WORK_FOLDER}/lock"
STRETCH_BYTES: Final = 1 << 30
"""Bytes of ids after which what was written is synced and recorded."""
PIECE_BYTES: Final = 1 << 21
"""Bytes of ids that a thread hashes at a time; a longer sample is a piece of its own."""
_READ_BYTES: Final = 1 << 20


class TokenReader(Protocol):
    """Gives the ids of a split, proved where there is something to prove them by."""

    num_tokens: int
    dtype: np.dtype[Any]

    def read_into(self, out: NDArray[Any], start: int) -> None:
        """Fill `out` with the ids from token `start` on."""
        ...


class Stretch(msgspec.Struct, frozen=True):
    """Tokens that are on disk, and the xxh3 of their bytes and of those of their sample ids."""

    num_tokens: int
    tokens: int
    sample_ids: int


class Progress(msgspec.Struct, frozen=True):
    """What an earlier attempt has finished, and of what."""

    identity: str
    seq_len: int
    stretches: tuple[Stretch, ...] = ()


class Consolidation:
    """The consolidation of one split, from its tokens to two files under their final names.

    `identity` names the content of the split: what an attempt at another content left is not used.
    """

    def __init__(
        self, folder: Path, split: str, *, reader: TokenReader, seq_len: int, identity: str
    ) -> None:
        self.reader = reader
        self.seq_len = seq_len
        self.num_samples = reader.num_tokens // seq_len
        work = folder / WORK_FOLDER
        self._identity = identity
        self._folder = folder
        self._final = (folder / tokens_name(split), folder / sample_ids_name(split))
        self._partial = (work / f"{split}.tokens", work / f"{split}.sample_ids")
        self._state = work / f"{split}.json"
        self._sha256 = (hashlib.sha256(), hashlib.sha256())

    def has_begun(self) -> bool:
        """Tell whether an earlier attempt at the same content left something to continue."""
        return self._read_progress() is not None

    def write(self, *, workers: int, report: Report, stretch_bytes: int | None = None) -> None:
        """Write both files under their temporary names, or continue to."""
        stretches = self._recover()
        done = sum(stretch.num_tokens for stretch in stretches)
        keep = (done * self.reader.dtype.itemsize, done // self.seq_len * SAMPLE_ID_DTYPE.itemsize)
        files = [_continue_file(p, n) for p, n in zip(self._partial, keep, strict=True)]
        step = self._whole_samples((stretch_bytes or STRETCH_BYTES) // self.reader.dtype.itemsize)
        try:
            with ThreadPoolExecutor(workers, thread_name_prefix="sample-ids") as pool:
                self._report(report, done)
                for start in range(done, self.reader.num_tokens, step):
                    stop = min(start + step, self.reader.num_tokens)
                    pieces = self._hashed_pieces(start, stop, pool=pool, workers=workers)
                    stretches.append(self._append(files, pieces, report=report, done=start))
                    for file in files:
                        file.sync()
                    self._write_progress(stretches)
            for file in files:
                file.finish()
        finally:
            for file in files:
                file.close()

    def entry(self) -> ConsolidatedEntry:
        """Return the sizes and hashes of what was written."""
        tokens, samples = self._sha256
        return ConsolidatedEntry(
            seq_len=self.seq_len,
            num_samples=self.num_samples,
            tokens=FileEntry(
                bytes=self.reader.num_tokens * self.reader.dtype.itemsize,
                sha256=tokens.hexdigest(),
            ),
            sample_ids=FileEntry(
                bytes=self.num_samples * SAMPLE_ID_DTYPE.itemsize, sha256=samples.hexdigest()
            ),
        )

    def validate(self) -> None:
        """Read both files back from the disk and compare them with what was hashed before."""
        entry = self.entry()
        for path, final, file in zip(
            self._partial, self._final, (entry.tokens, entry.sample_ids), strict=True
        ):
            digest = hashlib.sha256()
            for piece in _pieces(path, file.bytes, from_disk=True):
                digest.update(piece)
            if digest.hexdigest() != file.sha256:
                raise DamageError(
                    f"{final}: what was read back is not what was written",
                    hint="check the disk, then run the same command again",
                )

    def publish(self) -> None:
        """Give both files their final names."""
        for partial, final in zip(self._partial, self._final, strict=True):
            try:
                partial.replace(final)
            except OSError as error:
                raise storage_error(error, final) from error
        sync_folder(self._folder)

    def forget(self, *, files_too: bool = False) -> None:
        """Remove what is kept for continuing and, if asked, the files themselves."""
        for path in (self._state, *self._partial, *(self._final if files_too else ())):
            path.unlink(missing_ok=True)

    def _append(
        self,
        files: list[OutputFile],
        pieces: Iterator[tuple[NDArray[Any], NDArray[np.uint64]]],
        *,
        report: Report,
        done: int,
    ) -> Stretch:
        """Write pieces with their sample ids, in order; return their checksums."""
        sums, start = (xxhash.xxh3_64(), xxhash.xxh3_64()), done
        for arrays in pieces:
            for array, file, total, check in zip(arrays, files, self._sha256, sums, strict=True):
                data = array.view(np.uint8).data
                total.update(data)
                check.update(data)
                file.write(data)
            done += len(arrays[0])
            self._report(report, done)
        return Stretch(done - start, sums[0].intdigest(), sums[1].intdigest())

    def _hashed_pieces(
        self, start: int, stop: int, *, pool: ThreadPoolExecutor, workers: int
    ) -> Iterator[tuple[NDArray[Any], NDArray[np.uint64]]]:
        """Yield ids with their sample ids, which threads hash ahead."""
        ahead: deque[tuple[NDArray[Any], Future[NDArray[np.uint64]]]] = deque()
        step = self._whole_samples(PIECE_BYTES // self.reader.dtype.itemsize)
        for first in range(start, stop, step):
            ids = np.empty(min(step, stop - first), dtype=self.reader.dtype)
            self.reader.read_into(ids, first)
            ahead.append((ids, pool.submit(sample_ids, ids, self.seq_len)))
            if len(ahead) > workers:
                oldest, hashes = ahead.popleft()
                yield oldest, hashes.result()
        while ahead:
            oldest, hashes = ahead.popleft()
            yield oldest, hashes.result()

    def _whole_samples(self, num_tokens: int) -> int:
        return max(num_tokens // self.seq_len, 1) * self.seq_len

    def _report(self, report: Report, num_tokens: int) -> None:
        size = self.reader.dtype.itemsize
        total = self.reader.num_tokens * size
        report(
            Event(stage="consolidate", done=num_tokens * size, total=total, num_tokens=num_tokens)
        )

    # -- what an earlier attempt left

    def _recover(self) -> list[Stretch]:
        """Return the stretches on disk that are what they were, having hashed them again."""
        progress = self._read_progress()
        if progress is None:
            self.forget()
            self._write_progress([])
            return []
        self._take_back()
        good: list[Stretch] = []
        offsets = [0, 0]
        for stretch in progress.stretches:
            sizes = (
                stretch.num_tokens * self.reader.dtype.itemsize,
                stretch.num_tokens // self.seq_len * SAMPLE_ID_DTYPE.itemsize,
            )
            if not self._hash_stretch(stretch, offsets, sizes=sizes):
                break
            offsets = [offset + size for offset, size in zip(offsets, sizes, strict=True)]
            good.append(stretch)
        return good

    def _hash_stretch(
        self, stretch: Stretch, offsets: list[int], *, sizes: tuple[int, int]
    ) -> bool:
        totals: list[Any] = []
        expected = (stretch.tokens, stretch.sample_ids)
        for path, offset, size, total, wanted in zip(
            self._partial, offsets, sizes, self._sha256, expected, strict=True
        ):
            whole, check = total.copy(), xxhash.xxh3_64()
            try:
                for piece in _pieces(path, size, start=offset):
                    whole.update(piece)
                    check.update(piece)
            except DamageError:
                return False
            if check.intdigest() != wanted:
                return False
            totals.append(whole)
        self._sha256 = (totals[0], totals[1])
        return True

    def _take_back(self) -> None:
        """Undo a publication that the metadata does not speak of yet: then there is one case."""
        for partial, final in zip(self._partial, self._final, strict=True):
            if not partial.exists() and final.exists():
                final.rename(partial)

    def _read_progress(self) -> Progress | None:
        try:
            progress = msgspec.json.decode(self._state.read_bytes(), type=Progress)
        except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
            return None
        same = (progress.identity, progress.seq_len) == (self._identity, self.seq_len)
        return progress if same else None

    def _write_progress(self, stretches: list[Stretch]) -> None:
        progress = Progress(self._identity, self.seq_len, tuple(stretches))
        with atomic_write(self._state) as file:
            file.write(msgspec.json.encode(progress))


def _continue_file(path: Path, keep_bytes: int) -> OutputFile:
    if not keep_bytes:
        path.unlink(missing_ok=True)
    return OutputFile(path, keep_bytes=keep_bytes)


def _pieces(
    path: Path, num_bytes: int, *, start: int = 0, from_disk: bool = False
) -> Iterator[memoryview]:
    """Yield `num_bytes` of a file from `start` on; a file that ends before is `DamageError`."""
    buffer = memoryview(bytearray(_READ_BYTES))
    try:
        with path.open("rb", buffering=0) as file:
            if from_disk:  # synced before, so that the system can let go of its copy in memory
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(start)
            while num_bytes:
                length = file.readinto(buffer[: min(num_bytes, _READ_BYTES)])
                if not length:
                    raise DamageError(f"{path}: ends {num_bytes} bytes too early")
                yield buffer[:length]
                num_bytes -= length
    except FileNotFoundError:
        raise DamageError(f"{path}: is missing") from None
    except OSError as error:
        raise storage_error(error, path) from error
