"""What a run will do, decided from settings and input alone; and how two such plans differ."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tokenmill.errors import ConfigError, SettingsChangedError
from tokenmill.pipeline.sample import Sampling, choose_piece_bytes, sample_units
from tokenmill.pipeline.settings import MEBIBYTE, TokenizeSettings
from tokenmill.sources import SourceFile, SourceSettings, Unit, cut_units, find_files
from tokenmill.store import choose_dtype
from tokenmill.tokenizer import Tokenizer, load_tokenizer

SMALLEST_UNIT = 8 * MEBIBYTE
LARGE_UNIT = 64 * MEBIBYTE
LARGEST_UNIT = 1024 * MEBIBYTE
FEW_UNITS = 64
MANY_UNITS = 16_384
"""Ten for each of 1,600 cores: beyond that units grow, so that a driver's books do not."""
LONG_BYTES = 8 * MEBIBYTE
"""A longer document is never one string: it is decoded and encoded piece by piece."""
RECORD_NAME = "run.json"
_SHOWN_DIFFERENCES = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlan:
    """Settings resolved against the input and the tokenizer."""

    settings: TokenizeSettings
    files: list[SourceFile]
    units: list[Unit]
    share: float
    """About how much of the input the units are: less than 1 for a sample."""
    unit_bytes: int
    dtype: str
    bos_id: int | None
    eos_id: int | None
    fingerprint: str
    tokenizer_file: str

    @property
    def total_bytes(self) -> int:
        """Bytes of input that are read, as stored, compressed or not."""
        return round(sum(file.size for file in self.files) * self.share)


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What `_run/run.json` keeps, to recognise the same run when it is repeated."""

    settings: dict[str, Any]
    unit_bytes: int
    dtype: str
    bos_id: int | None
    eos_id: int | None
    fingerprint: str
    tokenizer_file: str
    num_units: int
    total_bytes: int
    files: list[SourceFile]


def make_plan(settings: TokenizeSettings, tokenizer: Tokenizer) -> RunPlan:
    """Find the input, cut it into units, and settle everything that was left to be chosen."""
    source = source_settings(settings)
    files = find_files(source)
    choose = choose_piece_bytes if settings.sample else choose_unit_bytes
    unit_bytes = settings.unit_bytes or choose(sum(file.size for file in files))
    units = cut_units(files, unit_bytes=unit_bytes, text_field=settings.text_field)
    share = 1.0
    if settings.sample and settings.max_tokens is not None:
        chosen = sample_units(units, Sampling(files, source, tokenizer, settings.max_tokens))
        units, share = chosen, len(chosen) / max(len(units), 1)
    return RunPlan(
        settings=settings,
        files=files,
        units=units,
        share=share,
        unit_bytes=unit_bytes,
        dtype=choose_dtype(tokenizer.num_ids, settings.dtype).name,
        bos_id=_special_id(tokenizer, "bos") if settings.bos else None,
        eos_id=_special_id(tokenizer, "eos") if settings.eos else None,
        fingerprint=tokenizer.fingerprint,
        tokenizer_file=tokenizer.definition_name,
    )


def chosen_tokenizer(settings: TokenizeSettings) -> Tokenizer:
    """Load the tokenizer that the settings name."""
    if settings.vocab is not None:
        return load_tokenizer(vocab=settings.vocab, merges=settings.merges)
    return load_tokenizer(settings.tokenizer)


def source_settings(settings: TokenizeSettings) -> SourceSettings:
    """Return the part of the settings that says what to read."""
    return SourceSettings(
        places=settings.sources,
        format=settings.format,
        separator=settings.separator,
        split=settings.split,
        catalog=settings.catalog,
        text_field=settings.text_field,
        max_document_bytes=settings.max_document_bytes,
        long_bytes=LONG_BYTES,
    )


def choose_unit_bytes(total_bytes: int) -> int:
    """Return a unit size that gives enough units to share out, and not too many.

    >>> [choose_unit_bytes(size) >> 20 for size in (0, 1 << 30, 1 << 40, 1 << 42, 1 << 50)]
    [8, 16, 64, 256, 1024]
    """
    small = min(max(total_bytes // FEW_UNITS, SMALLEST_UNIT), LARGE_UNIT)
    return min(max(total_bytes // MANY_UNITS, small), LARGEST_UNIT)


def plan_record(plan: RunPlan) -> RunRecord:
    """Return the part of a plan that must be the same for a run to continue."""
    return RunRecord(
        settings=plan.settings.content(),
        unit_bytes=plan.unit_bytes,
        dtype=plan.dtype,
        bos_id=plan.bos_id,
        eos_id=plan.eos_id,
        fingerprint=plan.fingerprint,
        tokenizer_file=plan.tokenizer_file,
        num_units=len(plan.units),
        total_bytes=plan.total_bytes,
        files=plan.files,
    )


def check_same_run(old: RunRecord, new: RunRecord, *, output: str | Path) -> None:
    """Raise `SettingsChangedError` that lists every difference, unless there is none."""
    found = differences(old, new)
    if found:
        shown = "\n".join(f"  {line}" for line in found[:_SHOWN_DIFFERENCES])
        hidden = len(found) - _SHOWN_DIFFERENCES
        more = f"\n  and {hidden:,} more" if hidden > 0 else ""
        raise SettingsChangedError(
            f"{output}: begun with other settings or input:\n{shown}{more}",
            hint="repeat the first command to continue it, or choose another output folder",
        )


def differences(old: RunRecord, new: RunRecord) -> list[str]:
    """Return one line for each thing in which two runs differ."""
    lines = [
        f"{name}: {_show(old.settings.get(name))} then, {_show(new.settings.get(name))} now"
        for name in sorted(old.settings.keys() | new.settings.keys())
        if old.settings.get(name) != new.settings.get(name)
    ]
    if old.fingerprint != new.fingerprint:
        lines.append(
            f"tokenizer definition: {old.fingerprint[:19]} then, {new.fingerprint[:19]} now"
        )
    before = {file.path: file for file in old.files}
    after = {file.path: file for file in new.files}
    lines += [f"{path}: no longer part of the input" for path in before if path not in after]
    lines += [f"{path}: not part of the input then" for path in after if path not in before]
    for path in before.keys() & after.keys():
        if before[path].size != after[path].size:
            lines.append(f"{path}: {before[path].size:,} bytes then, {after[path].size:,} now")
        elif before[path] != after[path]:
            lines.append(f"{path}: changed since then")
    if not lines and old.unit_bytes != new.unit_bytes:  # another version chose another size
        lines.append(f"unit_bytes: {old.unit_bytes:,} then, {new.unit_bytes:,} now")
    return lines


def _special_id(tokenizer: Tokenizer, kind: str) -> int:
    found = tokenizer.eos_id if kind == "eos" else tokenizer.bos_id
    if found is None:
        raise ConfigError(
            f"tokenizer {tokenizer.name!r} has no {kind.upper()} token",
            hint=f"use --no-{kind}, or a tokenizer whose folder names its {kind}_token",
        )
    return found


def _show(value: Any) -> str:
    return msgspec.json.encode(value).decode()
