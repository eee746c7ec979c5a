"""The settings of a training run, each with its help text, and how they are put together.

Order, later ones win: defaults, preset, what a plan says, --config, environment, flags, --set.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from tokenmill.config import environment_layer, read_mapping, resolve, set_layer
from tokenmill.errors import ConfigError
from tokenmill.train.model_settings import ComputeSettings, ModelSettings
from tokenmill.train.optimizer_settings import OptimizerSettings
from tokenmill.train.presets import DEFAULT_PRESET, PRESETS
from tokenmill.train.schedule import Schedule

LIMITS: Final = ("max_steps", "max_tokens")
FREE: Final = (
    *("data", "preset", "out_dir", "device", "batch_size", "max_steps", "max_tokens", "max_hours"),
    *("eval_interval", "checkpoint_interval", "log_interval", "keep_last", "compile", "parallel"),
    *("tokens_on_device", "deterministic", "trackers"),
)
"""What may differ when a run continues. Data and its path may move: the plan's digest counts."""
FREE_OF_COMPUTE: Final = (
    *("attention", "document_attention", "loss_chunk_tokens", "checkpoint_blocks"),
)
"""Of how the model is computed, what changes nothing but rounding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainSettings:
    """What to train a GPT on, how large it is, and how long it is trained."""

    data: str
    """A store, a plan file, files of token ids, or raw text."""
    preset: str = DEFAULT_PRESET
    """The settings to begin with: laptop, tinystories, gpt2 or owt-90m."""
    out_dir: str | None = None
    """Folder of the run; by default runs/NAME-PRESET. The same command again continues it."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to train; auto takes a GPU if there is one."""
    batch_size: int | Literal["auto"] = "auto"
    """Rows that go through the model at once on each rank; auto finds what fits."""
    batch_tokens: int = 32_768
    """Tokens between two updates of the weights, of all ranks together."""
    max_steps: int | None = None
    """Stop after this many updates."""
    max_tokens: int | None = None
    """Stop before more tokens than this would be trained on, instead of max_steps."""
    max_hours: float | None = None
    """Stop after this time, over all parts of the run, if that comes first."""
    eval_interval: int = 250
    """Steps between evaluations; 0: only at the end."""
    checkpoint_interval: int = 250
    """Steps between checkpoints; 0: only at the end and when a run is stopped."""
    log_interval: int = 10
    """Steps between rows of the metrics: only there the host waits for the device."""
    keep_last: int = 2
    """Checkpoints to keep, besides the best one."""
    grad_clip: float = 1.0
    """Longest gradient of all weights together; 0 does not limit it."""
    ema: float = 0.0
    """Also average the weights, keeping this share of the average at each step; 0 does not."""
    seed: int = 0
    """Decides the first weights, the order of the data, and dropout."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """What matrices are multiplied in; auto is bfloat16 on CUDA and float32 elsewhere."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Whether torch compiles the model; auto does on CUDA."""
    deterministic: bool = False
    """Only use operations whose results never vary: resume is bitwise on GPUs, too, but slower."""
    parallel: Literal["auto", "none", "ddp", "fsdp"] = "auto"
    """How ranks of torchrun share the model; auto is ddp."""
    document_masking: bool = False
    """Let tokens attend only inside their document, with positions from its start."""
    packing: Literal["concat", "best-fit", "pad", "sliding"] = "concat"
    """How documents are laid into rows."""
    tokens_on_device: Literal["auto", "on", "off"] = "auto"
    """Keep all tokens in the memory of the device; auto does on CUDA when they fit."""
    tokenizer: str = "bpe"
    """For raw text: bpe (trained on it), bytes, or a name, folder or file of a tokenizer."""
    bpe_vocab_size: int = 1024
    """For raw text with tokenizer bpe: ids in all."""
    separator: str | None = None
    """For raw text: what stands between documents; without it, a text file is one document."""
    text_field: str | None = None
    """For raw JSONL, Parquet or CSV: the field that holds the text."""
    split: str | None = None
    """For raw data with splits of its own: which one."""
    val_ratio: float = 0.1
    """Without a validation split: the share of documents, or of rows, that is kept for it."""
    val_data: str | None = None
    """A store to be measured on, in place of the split 'val' of DATA."""
    dtype: Literal["uint16", "uint32"] | None = None
    """The type of ids in .bin files, which do not tell it."""
    trackers: tuple[str, ...] = ()
    """Where metrics go besides metrics.jsonl: wandb, trackio, tensorboard."""
    model: ModelSettings = dataclasses.field(default_factory=ModelSettings)
    """The shape of the model: --set model.num_layers=8."""
    optimizer: OptimizerSettings = dataclasses.field(default_factory=OptimizerSettings)
    """Which optimizer, and its learning rates: --set optimizer.lr=0.01."""
    schedule: Schedule = dataclasses.field(default_factory=Schedule)
    """How the learning rate rises and falls: --set schedule.shape=cosine."""
    compute: ComputeSettings = dataclasses.field(default_factory=ComputeSettings)
    """How the model is computed: --set compute.checkpoint_blocks=true."""

    def __post_init__(self) -> None:
        if not self.data:
            raise ConfigError("no data given", hint="name a store, a plan or a text file")
        check_preset(self.preset)
        minima = {"batch_tokens": 1, "keep_last": 1, "log_interval": 1, "seed": 0}
        minima |= dict.fromkeys(("eval_interval", "checkpoint_interval"), 0)
        minima |= {name: 1 for name in LIMITS if getattr(self, name) is not None}
        minima |= {"batch_size": 1} if self.batch_size != "auto" else {}
        for name, minimum in minima.items():
            if getattr(self, name) < minimum:
                raise ConfigError(f"{name} must be at least {minimum}, got {getattr(self, name)}")
        if self.max_steps is not None and self.max_tokens is not None:
            raise ConfigError("max_steps and max_tokens are two ways to say one thing: give one")
        if self.max_hours is not None and not self.max_hours > 0:
            raise ConfigError(f"max_hours must be above 0, got {self.max_hours}")
        if not 0.0 <= self.ema < 1.0 or self.grad_clip < 0:
            raise ConfigError(f"ema must be in [0, 1) and grad_clip 0 or more: {self.ema=}")
        if not 0.0 < self.val_ratio < 1.0:
            raise ConfigError(f"val_ratio must be above 0 and below 1, got {self.val_ratio}")
        self._check_batch()

    def _check_batch(self) -> None:
        context = self.model.context_length
        if self.batch_tokens % context:
            near = max(1, round(self.batch_tokens / context)) * context
            raise ConfigError(
                f"batch_tokens is {self.batch_tokens:,}, which is no whole number of rows of "
                f"{context:,} tokens",
                hint=f"--batch-tokens {near}",
            )

    @property
    def batch_rows(self) -> int:
        """Rows in a global batch."""
        return self.batch_tokens // self.model.context_length

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        if self.out_dir is not None:
            return Path(self.out_dir)
        return Path("runs") / f"{Path(self.data).name.split('.')[0] or 'run'}-{self.preset}"

    def as_mapping(self) -> dict[str, Any]:
        """Return all settings as JSON-able values."""
        return {**dataclasses.asdict(self), "trackers": list(self.trackers)}

    def content(self) -> dict[str, Any]:
        """Return, by dotted names, the settings that decide what is learned."""
        values = _flatten(self.as_mapping())
        free = {*FREE, *(f"compute.{name}" for name in FREE_OF_COMPUTE)}
        return {name: value for name, value in values.items() if name not in free}


def resolve_train_settings(
    flags: Mapping[str, Any],
    *,
    config: Path | None = None,
    assignments: tuple[str, ...] = (),
    below: Mapping[str, Any] | None = None,
) -> TrainSettings:
    """Put the settings of a run together from its preset, files, environment and flags.

    `below` are the settings of a run that continues: any other layer overrules them.
    """
    given = [
        dict(below or {}),
        read_mapping(config) if config else {},
        environment_layer(TrainSettings),
        dict(flags),
        set_layer(assignments),
    ]
    chosen = {name: _last(given, name) for name in ("preset", "data")}
    preset = str(chosen["preset"] or DEFAULT_PRESET)
    check_preset(preset)
    layers = [PRESETS[preset], _plan_layer(str(chosen["data"] or "")), *given]
    return resolve(TrainSettings, *_without_overruled_limits(layers))


def check_preset(name: str) -> None:
    """Refuse a preset that there is not."""
    if name not in PRESETS:
        raise ConfigError(f"no preset {name!r}", hint=f"there are {', '.join(PRESETS)}")


def is_plan(data: str) -> bool:
    """Tell whether DATA is a plan file rather than documents."""
    path = Path(data)
    if path.suffix.lower() not in {".yaml", ".yml", ".toml", ".json"} or not path.is_file():
        return False
    try:
        return {"sources", "seq_len"} <= set(read_mapping(path))
    except ConfigError:
        if path.suffix.lower() == ".json":
            return False  # JSON documents, one a line
        raise


def _plan_layer(data: str) -> dict[str, Any]:
    """Return what a plan file says about the run, so that a preset does not."""
    if not is_plan(data):
        return {}
    plan = read_mapping(Path(data))
    lengths = [plan.get("num_steps"), *(c.get("num_steps") for c in plan.get("amendments", ()))]
    stages = [*plan.get("stages", ()), *plan.get("amendments", ())]
    contexts = [plan["seq_len"], *(stage.get("seq_len") or 0 for stage in stages)]
    layer: dict[str, Any] = {
        "batch_tokens": plan.get("batch_size", 1) * max(contexts),
        "model": {"context_length": max(contexts)},
        "seed": plan.get("seed", 0),
        "packing": plan.get("packing", "concat"),
    }
    known = [length for length in lengths if length is not None]
    return {**layer, "max_steps": known[-1]} if known else layer


def _without_overruled_limits(layers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop max_steps and max_tokens of layers below one that gives either."""
    names = {*LIMITS, *(name.replace("_", "-") for name in LIMITS)}
    kept: list[dict[str, Any]] = []
    for number, layer in enumerate(layers):
        later = layers[number + 1 :]
        is_overruled = any(above.get(name) is not None for above in later for name in names)
        kept.append(
            {key: value for key, value in layer.items() if not (is_overruled and key in names)}
        )
    return kept


def _last(layers: list[dict[str, Any]], name: str) -> Any:
    found = [layer[name] for layer in layers if layer.get(name) is not None]
    return found[-1] if found else None


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
