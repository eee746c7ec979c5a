"""`TextDataModule`: training and validation loaders of torch from text files or from stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tokenmill.dataset.permutation import permute
from tokenmill.dataset.stream_text import Places, stream_text
from tokenmill.dataset.token_dataset import get_dataset
from tokenmill.errors import ConfigError
from tokenmill.remote import is_remote, join, object_info
from tokenmill.store import METADATA_NAME
from tokenmill.tokenizer import Tokenizer


class TextDataModule:
    """Gives `train_dataloader()` and `val_dataloader()`, from text or from stores.

        data = TextDataModule("train.txt", "val.txt", batch_size=8, context_length=512)
        trainer.fit(model, data.train_dataloader(), data.val_dataloader())

    Training data is shuffled by the seed, validation data is in order. Every rank gets as many
    batches of a store; of text, ranks differ by what is left at the end.

    Args:
        train: A store, or text files, folders or globs.
        val: The same for validation; for a store, by default its split `val`.
        preprocessed: Whether these are stores; by default this is seen from the folder.
        tokenizer: For text; a store brings its own.
        options: More for `get_dataset` or, for text, `stream_text`.
    """

    def __init__(  # noqa: PLR0913  (the place where all of these are said once)
        self,
        train: Places,
        val: Places | None = None,
        *,
        batch_size: int = 8,
        context_length: int = 1024,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        preprocessed: bool | None = None,
        tokenizer: Tokenizer | str = "gpt2",
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        pin_memory: bool = False,
        **options: Any,
    ) -> None:
        self.preprocessed = _is_store(train) if preprocessed is None else preprocessed
        self.batch_size = batch_size
        self.context_length = context_length
        self.seed = seed
        self.share = (rank, world_size)
        self._tokenizer = tokenizer
        self._options = options
        self._loading = {
            "num_workers": num_workers,
            "prefetch_factor": prefetch_factor if num_workers else None,
            "pin_memory": pin_memory,
        }
        self.train = self._open(train, is_train=True)
        self._no_val = ConfigError("there is no validation data", hint="give val")
        self.val = self._open_val(train, val)

    def train_dataloader(self) -> Any:
        """Return a `DataLoader` over the training data."""
        return self._load(self.train, is_train=True)

    def val_dataloader(self) -> Any:
        """Return a `DataLoader` over the validation data."""
        if self.val is None:
            raise self._no_val
        return self._load(self.val, is_train=False)

    def _open(self, places: Places, *, is_train: bool, split: str = "train") -> Any:
        if not self.preprocessed:
            rank, world_size = self.share
            return stream_text(
                places,
                self._tokenizer,
                self.context_length,
                rank=rank,
                world_size=world_size,
                batch_size=self.batch_size,
                seed=self.seed if is_train else None,
                **self._options,
            )
        if not isinstance(places, str | Path):
            raise ConfigError(f"a store is one folder, got {len(places)} places")
        return get_dataset(places, self.context_length, split=split, **self._options)

    def _open_val(self, train: Places, val: Places | None) -> Any:
        if val is not None:
            return self._open(val, is_train=False)
        if not self.preprocessed:
            return None
        try:
            return self._open(train, is_train=False, split="val")
        except ConfigError as error:  # raised when it is asked for: not everybody validates
            self._no_val = error
            return None

    def _load(self, dataset: Any, *, is_train: bool) -> Any:
        from tokenmill.dataset.torch import make_data_loader

        if not self.preprocessed:  # the stream makes the batches
            return make_data_loader(dataset, batch_size=None, **self._loading)
        order = Order(len(dataset), seed=self.seed if is_train else None, share=self.share)
        return make_data_loader(dataset, batch_size=self.batch_size, sampler=order, **self._loading)


class Order:
    """The items of one rank in the order of one epoch: a sampler for torch's `DataLoader`.

    Each iteration is the next epoch, unless `set_epoch` says which. Ranks get equally many items;
    fewer than `world_size` are left out, others in each epoch if there is a seed.
    """

    def __init__(self, size: int, *, seed: int | None, share: tuple[int, int] = (0, 1)) -> None:
        self.size = size
        self.seed = seed
        self.rank, self.world_size = share
        self._epoch = 0
        if size < self.world_size:
            raise ConfigError(f"{size} items are too few for {self.world_size} ranks")

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be this epoch."""
        self._epoch = epoch

    def __len__(self) -> int:
        return self.size // self.world_size

    def __iter__(self) -> Iterator[int]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        step = 1 << 14  # computed as it goes: nothing is built for the whole epoch
        for start in range(0, len(self), step):
            numbers = np.arange(start, min(start + step, len(self)))
            places = numbers * self.world_size + self.rank
            if self.seed is not None:
                places = permute(places, self.size, seed=self.seed, epoch=epoch)
            yield from places.tolist()


def _is_store(places: str | Path | Sequence[str | Path]) -> bool:
    if not isinstance(places, str | Path):
        return False
    place = str(places)
    if is_remote(place):
        return object_info(join(place, METADATA_NAME)) is not None or place.endswith("tokens.bin")
    return Path(place, METADATA_NAME).is_file() or Path(place).suffix in {".npy", ".bin"}
