"""A trained model as a folder that Hugging Face `transformers` loads, with the same logits.

The gpt2 core is its `GPT2LMHeadModel`; the modern core is its `NanoChatForCausalLM` (transformers
4.57 and newer). Rows of the vocabulary's padding are left out. Nothing of transformers is needed to
write it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import msgspec
import torch
from safetensors.torch import save_file
from torch import Tensor

from tokenmill.errors import ConfigError
from tokenmill.files import storage_error
from tokenmill.tokenizer import Tokenizer
from tokenmill.train.model import GPT, NORM_EPSILON, ROTARY_BASE

Values = dict[str, Any]


def export_hf(
    model: GPT,
    folder: str | Path,
    *,
    tokenizer: Tokenizer | None = None,
    dtype: Literal["float32", "bfloat16"] = "float32",
) -> Path:
    """Write a folder for `transformers`, and return it; it must not exist yet.

    The folder appears when it is complete.
    """
    final = Path(folder)
    if final.exists():
        raise ConfigError(f"{final} exists already", hint="name a new folder")
    if tokenizer is not None:
        model.settings.for_vocab(tokenizer.num_ids, source=f"the tokenizer {tokenizer.name}")
    is_gpt2 = model.settings.core == "gpt2"
    weights = _gpt2_weights(model) if is_gpt2 else _nanochat_weights(model)
    config = _gpt2_config(model) if is_gpt2 else _nanochat_config(model)
    config |= _special_ids(tokenizer) | {"dtype": dtype}
    precision = getattr(torch, dtype)
    whole = {name: value.to(precision).contiguous() for name, value in weights.items()}
    partial = final.with_name(f".{final.name}.{uuid4().hex}.partial")
    try:
        partial.mkdir(parents=True)
        save_file(whole, partial / "model.safetensors", metadata={"format": "pt"})
        for name, data in _tokenizer_files(tokenizer, model).items():
            (partial / name).write_bytes(data)
        (partial / "config.json").write_bytes(_json(config))
        partial.rename(final)
    except OSError as error:
        raise storage_error(error, final) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return final


def _gpt2_config(model: GPT) -> Values:
    settings = model.settings
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": settings.vocab_size,
        "n_positions": settings.context_length,
        "n_embd": settings.width,
        "n_layer": settings.num_layers,
        "n_head": settings.num_heads,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": NORM_EPSILON["gpt2"],
        "initializer_range": 0.02,
        "resid_pdrop": settings.dropout,
        "embd_pdrop": settings.dropout,
        "attn_pdrop": settings.dropout,
        "tie_word_embeddings": True,
    }


def _gpt2_weights(model: GPT) -> dict[str, Tensor]:
    """Return the weights under the names of GPT-2, whose matrices have inputs by rows."""
    names = {
        "attention_norm": "ln_1",
        "attention.qkv": "attn.c_attn",
        "attention.out": "attn.c_proj",
        "feed_forward_norm": "ln_2",
        "feed_forward.up": "mlp.c_fc",
        "feed_forward.down": "mlp.c_proj",
    }
    ours = _weights(model)
    theirs = {
        "transformer.wte.weight": ours["embedding.weight"],
        "transformer.wpe.weight": ours["positions.weight"],
        "transformer.ln_f.weight": ours["norm.weight"],
        "transformer.ln_f.bias": ours["norm.bias"],
    }
    for layer in range(model.settings.num_layers):
        for name, their_name in names.items():
            weight = ours[f"blocks.{layer}.{name}.weight"]
            theirs[f"transformer.h.{layer}.{their_name}.weight"] = weight.t()  # of a vector: itself
            theirs[f"transformer.h.{layer}.{their_name}.bias"] = ours[f"blocks.{layer}.{name}.bias"]
    return theirs


def _nanochat_config(model: GPT) -> Values:
    settings = model.settings
    return {
        "architectures": ["NanoChatForCausalLM"],
        "model_type": "nanochat",
        "vocab_size": settings.vocab_size,
        "hidden_size": settings.width,
        "intermediate_size": 4 * settings.width,
        "num_hidden_layers": settings.num_layers,
        "num_attention_heads": settings.num_heads,
        "num_key_value_heads": settings.num_heads,
        "max_position_embeddings": settings.context_length,
        "hidden_act": "relu2",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rms_norm_eps": NORM_EPSILON["modern"],
        "rope_parameters": {"rope_type": "default", "rope_theta": ROTARY_BASE},
        "final_logit_softcapping": settings.softcap or None,
        "tie_word_embeddings": False,
    }


def _nanochat_weights(model: GPT) -> dict[str, Tensor]:
    names = {
        "attention.out": "self_attn.o_proj",
        "feed_forward.up": "mlp.fc1",
        "feed_forward.down": "mlp.fc2",
    }
    ours = _weights(model)
    theirs = {
        "model.embed_tokens.weight": ours["embedding.weight"],
        "lm_head.weight": ours["head.weight"],
    }
    for layer in range(model.settings.num_layers):
        prefix = f"model.layers.{layer}"
        parts = ours[f"blocks.{layer}.attention.qkv.weight"].chunk(3)
        for letter, part in zip("qkv", parts, strict=True):
            theirs[f"{prefix}.self_attn.{letter}_proj.weight"] = part
        for name, their_name in names.items():
            theirs[f"{prefix}.{their_name}.weight"] = ours[f"blocks.{layer}.{name}.weight"]
    return theirs


def _weights(model: GPT) -> dict[str, Tensor]:
    """Return the weights on the host, without rows for ids that there are not."""
    size = model.settings.vocab_size
    weights = {name: p.detach().float().cpu() for name, p in model.named_parameters()}
    for name in {"embedding.weight", "head.weight"} & set(weights):
        weights[name] = weights[name][:size]
    return weights


def _special_ids(tokenizer: Tokenizer | None) -> Values:
    roles = ("bos", "eos", "pad")
    ids = {} if tokenizer is None else {r: getattr(tokenizer.special_ids, r) for r in roles}
    return {f"{role}_token_id": ids.get(role) for role in roles}


def _tokenizer_files(tokenizer: Tokenizer | None, model: GPT) -> dict[str, bytes]:
    if tokenizer is None:
        return {}
    files = {tokenizer.definition_name: tokenizer.definition}
    if tokenizer.definition_name == "tokenizer.json":
        texts = {token_id: text for text, token_id in tokenizer.special_tokens.items()}
        ids = {role: getattr(tokenizer.special_ids, role) for role in ("bos", "eos", "pad")}
        config: Values = {f"{role}_token": texts[i] for role, i in ids.items() if i in texts}
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        config["model_max_length"] = model.settings.context_length
        config["clean_up_tokenization_spaces"] = False
        files["tokenizer_config.json"] = _json(config)
    return files


def _json(values: Values) -> bytes:
    return msgspec.json.format(msgspec.json.encode(values), indent=2) + b"\n"
