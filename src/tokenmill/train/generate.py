"""Text from a trained model, token by token: sampled with a seed, streamed in whole characters.

Keys and values of what the model has seen are kept, so a token costs one position. When the longest
sequence of the model is reached, its older half is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from tokenmill.errors import ConfigError
from tokenmill.tokenizer import Tokenizer
from tokenmill.train.attention import KeyValueCache
from tokenmill.train.model import GPT
from tokenmill.train.sample_settings import SampleSettings

UNKNOWN = "\N{REPLACEMENT CHARACTER}"


def sample(
    model: GPT, tokenizer: Tokenizer, prompt: str = "", *, settings: SampleSettings | None = None
) -> Iterator[str]:
    """Yield the text that follows a prompt, in pieces that never cut a character.

    Without a prompt a new document begins. The prompt is not repeated.
    """
    settings = settings or SampleSettings()
    model.settings.for_vocab(tokenizer.num_ids, source=f"the tokenizer {tokenizer.name}")
    prompt_ids = tokenizer.encode(prompt) if prompt else [_first_id(tokenizer)]
    eos_id = tokenizer.eos_id if settings.stop_at_eos else None
    ids = generate_ids(model, prompt_ids, settings=settings, num_ids=tokenizer.num_ids)
    yield from _text_pieces(tokenizer, _until(eos_id, ids))


def generate_ids(
    model: GPT,
    prompt_ids: Sequence[int],
    *,
    settings: SampleSettings,
    num_ids: int | None = None,
    use_cache: bool = True,
) -> Iterator[int]:
    """Yield `max_tokens` ids that follow a prompt of at least one.

    Args:
        num_ids: Choose among the first of the model's ids: those that a tokenizer knows.
        use_cache: Off computes every position again for every token, for the same ids.
    """
    if not prompt_ids:
        raise ConfigError("there is nothing to continue: the prompt has no tokens")
    rng = torch.Generator().manual_seed(settings.seed)
    longest = model.settings.context_length
    window = list(prompt_ids)[-longest:]
    cache: KeyValueCache | None = None
    for _ in range(settings.max_tokens):
        if len(window) > longest:
            window = window[-max(1, longest // 2) :]
            cache = None
        if cache is None and use_cache:
            cache = _new_cache(model)
        logits = _next_logits(model, window, cache)[:num_ids]
        chosen = choose(logits, settings, rng=rng)
        window.append(chosen)
        yield chosen


def choose(logits: Tensor, settings: SampleSettings, *, rng: torch.Generator) -> int:
    """Return the id to take next, for logits (V,)."""
    if settings.temperature == 0:
        return int(logits.argmax())
    return int(torch.multinomial(probabilities(logits, settings), 1, generator=rng))


def probabilities(logits: Tensor, settings: SampleSettings) -> Tensor:
    """Return the probability of each id (V,) after temperature, top-k and top-p, in this order.

    The likeliest id always stays; of ids that are as likely as each other, lower ones come first.
    """
    shares = torch.softmax(logits.double() / settings.temperature, dim=-1)
    order = shares.argsort(descending=True, stable=True)
    ordered = shares[order]
    if settings.top_k:
        ordered[settings.top_k :] = 0.0
        ordered /= ordered.sum()
    if settings.top_p < 1.0:
        before = ordered.cumsum(0) - ordered
        ordered[before >= settings.top_p] = 0.0
    return torch.zeros_like(shares).scatter(0, order, ordered / ordered.sum())


@torch.inference_mode()
def _next_logits(model: GPT, window: list[int], cache: KeyValueCache | None) -> Tensor:
    """Return the logits (V,) after a window, on the host: the same choice on every device."""
    was_training = model.training
    model.eval()
    try:
        new = window if cache is None else window[cache.length :]
        token_ids = torch.tensor([new], device=model.embedding.weight.device)
        return model(token_ids, cache=cache)[0, -1].float().cpu()
    finally:
        model.train(was_training)


def _new_cache(model: GPT) -> KeyValueCache:
    device = model.embedding.weight.device
    return KeyValueCache(model.settings, num_rows=1, dtype=model.dtype, device=device)


def _first_id(tokenizer: Tokenizer) -> int:
    """Return what stands before a document."""
    for token_id in (tokenizer.bos_id, tokenizer.eos_id):
        if token_id is not None:
            return token_id
    raise ConfigError(
        f"the tokenizer {tokenizer.name} has no token that opens a document",
        hint="give a --prompt to begin with",
    )


def _until(stop_id: int | None, ids: Iterable[int]) -> Iterator[int]:
    for token_id in ids:
        if token_id == stop_id:
            return
        yield token_id


def _text_pieces(tokenizer: Tokenizer, ids: Iterable[int]) -> Iterator[str]:
    """Yield the text of ids as it becomes certain: what may still be half a character waits."""
    seen: list[int] = []
    done = ""
    text = ""
    for token_id in ids:
        seen.append(token_id)
        text = tokenizer.decode(seen)
        certain = text.rstrip(UNKNOWN)
        if len(certain) > len(done) and certain.startswith(done):
            yield certain[len(done) :]
            done = certain
    if len(text) > len(done):
        yield text[len(done) :]
