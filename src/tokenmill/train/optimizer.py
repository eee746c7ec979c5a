"""How gradients change the weights: Muon for the matrices of blocks, AdamW for the rest.

AdamW is torch's own, fused where the weights are whole; beside Muon its learning rates scale with
1 / sqrt(width / 768). Biases and norms never decay.

With several processes: where each holds all weights, each does the same, or with `share_work` a
part of Muon's products; of weights that FSDP has cut, AdamW moves the parts, and Muon puts their
momentum together for the products and keeps its part of the result.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from tokenmill.errors import ConfigError
from tokenmill.train.model import matrix_parts
from tokenmill.train.muon import Muon
from tokenmill.train.optimizer_settings import OptimizerSettings
from tokenmill.train.sharded import cut_like

REFERENCE_WIDTH = 768
_MATRIX_DIMENSIONS = 2
_WRAPPERS = re.compile(r"(^|\.)(module|_orig_mod|_checkpoint_wrapped_module)(?=\.)")


class Optimizers:
    """All optimizers of a model as one: a step, and a state of tensors under names."""

    def __init__(
        self, names: Mapping[Tensor, str], *, adamw: torch.optim.AdamW, muon: Muon | None
    ) -> None:
        self.names = dict(names)
        self.adamw = adamw
        self.muon = muon
        self._peaks = [float(group["lr"]) for group in adamw.param_groups]

    def step(self, step: int, *, factor: float = 1.0) -> None:
        """Move the weights; `factor` is the schedule's, `step` counts from 0."""
        for group, peak in zip(self.adamw.param_groups, self._peaks, strict=True):
            group["lr"] = peak * factor
        self.adamw.step()
        if self.muon is not None:
            self.muon.step(step, factor=factor)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.names:
            parameter.grad = None

    def learning_rates(self) -> dict[str, float]:
        """Return the peak learning rate of each group of weights."""
        groups = zip(self.adamw.param_groups, self._peaks, strict=True)
        rates = {str(group["name"]): peak for group, peak in groups}
        if self.muon is not None:
            rates["muon"] = self.muon.settings.matrix_lr
        return rates

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state under names such as `adamw.exp_avg.head.weight`: live, not copied.

        AdamW has none before its first step.
        """
        state = {
            f"adamw.{what}.{self.names[parameter]}": value
            for parameter, values in self.adamw.state.items()
            for what, value in values.items()
        }
        if self.muon is not None:
            momenta = self.muon.momenta.items()
            state |= {f"muon.momentum.{self.names[p]}": momentum for p, momentum in momenta}
        return state

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over a copy of a state that the same optimizers of the same model gave.

        Where FSDP has cut the weights, the state may be whole on every process, or cut alike.
        """
        parameters = {name: parameter for parameter, name in self.names.items()}
        adamw: dict[Tensor, dict[str, Tensor]] = defaultdict(dict)
        for key, value in state.items():
            kind, what, name = key.split(".", 2)
            parameter = parameters.get(name)
            momenta = self.muon.momenta if self.muon is not None else {}
            if parameter is None or (kind == "muon") != (parameter in momenta):
                raise ConfigError(
                    f"the optimizer's state has {key!r}, for which this model has no place",
                    hint="resume with the model and the optimizer of the checkpoint",
                )
            if kind == "muon":
                momenta[parameter].copy_(cut_like(value, parameter))
            else:
                adamw[parameter][what] = _placed(value, parameter)
        self.adamw.state.clear()
        self.adamw.state.update(adamw)


def make_optimizers(
    model: nn.Module, settings: OptimizerSettings, *, share_work: bool = False
) -> Optimizers:
    """Return the optimizers of a GPT, which DDP, FSDP or a compiler may have wrapped.

    Args:
        share_work: Divide Muon's products between the processes of a run: for weights that each
            process holds whole.
    """
    names: dict[Tensor, str] = {
        parameter: plain_name(name) for name, parameter in model.named_parameters()
    }
    is_muon = settings.optimizer == "muon"
    groups: dict[tuple[str, float], list[Tensor]] = defaultdict(list)
    matrices: dict[Tensor, int] = {}
    for parameter, name in names.items():
        if is_muon and _is_block_matrix(parameter, name):
            matrices[parameter] = matrix_parts(name)
        else:
            groups[_group(parameter, name, settings)].append(parameter)
    rate = settings.matrix_lr
    if not is_muon:
        rates = {kind: rate for kind, _ in groups}
    else:
        width = next(p.shape[1] for p, name in names.items() if name == "embedding.weight")
        rates = _rates_beside_muon(settings, width, is_tied="head.weight" not in names.values())
    adamw = torch.optim.AdamW(
        [
            {"params": members, "name": kind, "lr": rates[kind], "weight_decay": decay}
            for (kind, decay), members in groups.items()
        ],
        betas=settings.betas,
        eps=settings.epsilon,
        fused=not any(isinstance(parameter, DTensor) for parameter in names),
    )
    muon = Muon(matrices, settings, share_work=share_work) if matrices else None
    return Optimizers(names, adamw=adamw, muon=muon)


def plain_name(name: str) -> str:
    """Return the name of a parameter without those of what wraps the model.

    >>> plain_name("_orig_mod.module.blocks.0.attention.qkv.weight")
    'blocks.0.attention.qkv.weight'
    """
    return _WRAPPERS.sub("", name).removeprefix(".")


def _is_block_matrix(parameter: Tensor, name: str) -> bool:
    return name.startswith("blocks.") and parameter.ndim == _MATRIX_DIMENSIONS


def _group(parameter: Tensor, name: str, settings: OptimizerSettings) -> tuple[str, float]:
    """Return the kind of a parameter for AdamW, and its weight decay."""
    if parameter.ndim != _MATRIX_DIMENSIONS:
        return "vectors", 0.0
    if _is_block_matrix(parameter, name):
        return "matrices", settings.matrix_decay
    # beside Muon rates are so high that a decay would wipe out the vectors of rare ids
    decay = 0.0 if settings.optimizer == "muon" else settings.matrix_decay
    return name.removesuffix(".weight"), decay


def _rates_beside_muon(
    settings: OptimizerSettings, width: int, *, is_tied: bool
) -> dict[str, float]:
    scale = (width / REFERENCE_WIDTH) ** -0.5
    return {
        "embedding": scale * (settings.other_lr if is_tied else settings.embedding_lr),
        "head": scale * settings.head_lr,
        "positions": scale * settings.other_lr,
        "vectors": scale * settings.other_lr,
    }


def _placed(value: Tensor, parameter: Tensor) -> Tensor:
    """Return a copy of a part of AdamW's state where it belongs."""
    if value.ndim == 0:
        return value.detach().clone().to(parameter.device)
    return torch.empty_like(parameter).copy_(cut_like(value, parameter))
