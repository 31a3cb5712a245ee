"""Batched lock-step sampling from any Hugging Face causal language model.

How a batch is sampled:

1. Requests are sorted by prompt length and split by a budget of padded tokens; results come back in the asked order.
2. Each distinct prompt is read once (a group's members share their first prompt), in chunks of similar length without
   logits for any but the last position; the keys and values are then copied to the rows that own the prompt.
3. All rows decode together, one token a step, in key-value buffers that grow in place. Rows that sampled a stop token
   or completed a stop string leave the batch as soon as a quarter of it has finished.

Random numbers are given from outside, one uniform number a token, so that a request samples the same tokens whatever
the order of the batch. Its composition changes only how sums round, about 1e-5 in a log-probability in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.cache_utils import DynamicCache, DynamicLayer

from factagent.policies.base import seed_of
from factagent.policies.stops import BatchStops, StopStrings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BATCH_TOKENS = 65_536
"""Padded tokens (prompt and reply) that decode together."""

PREFILL_TOKENS = 4_096
"""Padded tokens that are read together: small enough for the activations of a tiny model to stay in cache."""

GROW_TOKENS = 32
"""Positions by which a key-value buffer grows."""

COMPACT_SHARE = 0.75
"""Rows are compacted when no more than this share of them is still decoding."""

CUDA_CHECK_EVERY = 8
"""Steps between two looks at who has finished, on devices where looking means waiting."""


class Sample(NamedTuple):
    """One sampled reply: its tokens (what stopped it included), their log-probabilities in nats, why it ended."""

    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str


def uniforms_of(keys: Sequence[Sequence[str | int]], max_new_tokens: int) -> NDArray[np.float64]:
    """The random numbers of each request: a counter-based stream named by its key, shape (requests, tokens)."""
    streams = [np.random.Generator(np.random.Philox(seed_of(key))).random(max_new_tokens) for key in keys]
    return np.stack(streams) if streams else np.zeros((0, max_new_tokens))


def generate_batch(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    uniforms: NDArray[np.float64],
    *,
    temperature: float,
    max_new_tokens: int,
    stop_ids: Sequence[int],
    pad_id: int = 0,
    max_batch_tokens: int = BATCH_TOKENS,
    autocast: bool = False,
    stop_strings: Sequence[StopStrings | None] | None = None,
    top_p: float = 1.0,
) -> list[Sample]:
    """Sample one reply a prompt.

    Args:
        model: any causal model; it is put into eval mode for the time of the call.
        prompts: token ids, none empty.
        uniforms: (prompts, max_new_tokens) numbers in [0, 1), see `uniforms_of`; not read at temperature 0.
        temperature: 0 takes the most probable token. Otherwise tokens are drawn from softmax(logits / temperature).
            `logprobs` are under exactly that distribution (at temperature 0: under softmax(logits)), so a learner that
            divides its logits by the same temperature sees ratios of 1.
        max_new_tokens: a reply that has not stopped by then ends with finish reason "length".
        stop_ids: tokens that end a reply; the one sampled is part of it.
        pad_id: any valid token id; it is masked.
        max_batch_tokens: padded tokens that decode together.
        autocast: bfloat16 matrix products; rounding (to 1e-2) then depends on the batch and may flip a draw.
        stop_strings: for each prompt, strings that end its reply with the token that completes one.
        top_p: tokens are drawn from the `nucleus` of this mass alone; 1 is the whole distribution. `logprobs` are under
            the whole one all the same: a learner computes no other, so ratios start at 1, and published trainers that
            sample from a nucleus do so too. The tokens are then those of a slightly sharper policy than the one that is
            trained. Rounding (above) moves a draw more at the edge of a nucleus, where it decides which token is in.

    Raises:
        ValueError: an empty prompt, numbers out of range, or not one entry of `stop_strings` a prompt.
    """
    if max_new_tokens < 1 or temperature < 0:
        raise ValueError(f"max_new_tokens={max_new_tokens} must be at least 1, temperature={temperature} at least 0")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p={top_p} must be above 0 and at most 1")
    if any(len(prompt) == 0 for prompt in prompts):
        raise ValueError("a prompt without tokens cannot be continued")
    strings = [None] * len(prompts) if stop_strings is None else list(stop_strings)
    if len(strings) != len(prompts):
        raise ValueError(f"{len(strings)} entries of stop_strings for {len(prompts)} prompts")
    # The draws break ties, so that the batch, and with it every rounding, is the same for any order of requests.
    order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), tuple(prompts[i]), uniforms[i].tobytes()))
    results: dict[int, Sample] = {}
    with sampling_mode(model, autocast):
        for batch in split_by_budget(order, [len(prompt) + max_new_tokens for prompt in prompts], max_batch_tokens):
            decoder = _Decoder(model, [tuple(prompts[i]) for i in batch], max_new_tokens, pad_id, autocast)
            stops = BatchStops(stop_ids, [strings[i] for i in batch], model.device)
            samples = decoder.run(torch.from_numpy(uniforms[batch]), temperature, stops, top_p)
            results.update(zip(batch, samples, strict=True))
    return [results[i] for i in range(len(prompts))]


@contextmanager
def sampling_mode(model: PreTrainedModel, autocast: bool) -> Iterator[None]:
    """The model in eval mode, without gradients, under bf16 autocast where asked for."""
    was_training = model.training
    model.train(False)
    try:
        with torch.inference_mode(), torch.autocast(model.device.type, torch.bfloat16, enabled=autocast):
            yield
    finally:
        model.train(was_training)


def split_by_budget(order: Sequence[int], lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Cut `order` (ascending in length) into runs of at most `budget` padded tokens, at least one item each."""
    batch: list[int] = []
    for index in order:
        if batch and (len(batch) + 1) * lengths[index] > budget:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


class _GrowingLayer(DynamicLayer):
    """Keys and values of one layer in buffers with room to grow, instead of a concatenation a token."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, rows: torch.Tensor, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lazy_initialization(keys.to(dtype), values.to(dtype))
        self._store(keys.to(dtype)[rows], values.to(dtype)[rows])

    def _store(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        pad = (0, 0, 0, GROW_TOKENS)
        self._length = keys.shape[-2]
        self._all_keys = torch.nn.functional.pad(keys, pad)
        self._all_values = torch.nn.functional.pad(values, pad)
        self._show()

    def _show(self) -> None:
        self.seen = (self._all_keys[:, :, : self._length], self._all_values[:, :, : self._length])
        self.keys, self.values = self.seen

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new positions behind the old ones and return all of them."""
        start, stop = self._length, self._length + key_states.shape[-2]
        while stop > self._all_keys.shape[-2]:
            self._store(self._all_keys, self._all_values)
        self._all_keys[:, :, start:stop] = key_states
        self._all_values[:, :, start:stop] = value_states
        self._length = stop
        self._show()
        return self.seen

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep these rows."""
        keys, values = self.seen
        self._store(keys[indices], values[indices])


class _Decoder:
    """One batch on its way: prompts sorted by length, their cache, and what was sampled so far."""

    def __init__(
        self, model: PreTrainedModel, prompts: list[tuple[int, ...]], max_new_tokens: int, pad_id: int, autocast: bool
    ) -> None:
        self.model = model
        self.max_new_tokens = max_new_tokens
        self.pad_id = pad_id
        self.cache_dtype = torch.bfloat16 if autocast else model.dtype
        distinct = list(dict.fromkeys(prompts))
        index = {prompt: i for i, prompt in enumerate(distinct)}
        owner = torch.tensor([index[prompt] for prompt in prompts], device=model.device)
        self.width = len(prompts[-1])
        self.lengths = torch.tensor([len(prompt) for prompt in prompts], device=model.device)
        columns = torch.arange(self.width + max_new_tokens, device=model.device)
        self.mask = (columns >= (self.width - self.lengths)[:, None]).long()
        self.cache, logits = self._read(distinct, owner)
        self.logits = logits[owner]

    def run(self, uniforms: torch.Tensor, temperature: float, stops: BatchStops, top_p: float) -> list[Sample]:
        """Decode until every row has stopped or is full. `uniforms` is (rows, max_new_tokens)."""
        device = self.model.device
        look_every = _look_every(device)
        rows = torch.arange(len(self.lengths), device=device)
        draws = uniforms.to(device)
        tokens_RT = torch.full((len(rows), self.max_new_tokens), self.pad_id, device=device)
        logprobs_RT = torch.zeros((len(rows), self.max_new_tokens), device=device)
        done = torch.zeros(len(rows), dtype=torch.bool, device=device)
        for step in range(self.max_new_tokens):
            token, logprob = draw(self.logits, draws[rows, step], temperature, top_p)
            tokens_RT[rows, step], logprobs_RT[rows, step] = token, logprob
            done |= stops.are_stops(token)
            if step + 1 == self.max_new_tokens:
                break
            if (step + 1) % look_every == 0:
                stops.mark(done, tokens_RT, rows, step + 1)
                keep = (~done).nonzero().squeeze(1)
                if len(keep) == 0:
                    break
                if len(keep) <= COMPACT_SHARE * len(rows):
                    self._keep(keep)
                    rows, done, token = rows[keep], done[keep], token[keep]
            self._advance(token, step)
        return _collect(tokens_RT, logprobs_RT, stops)

    def _advance(self, token: torch.Tensor, step: int) -> None:
        output = self.model(
            input_ids=token[:, None],
            attention_mask=self.mask[:, : self.width + step + 1],
            position_ids=(self.lengths + step)[:, None],
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.logits = output.logits[:, -1]

    def _keep(self, keep: torch.Tensor) -> None:
        self.cache.batch_select_indices(keep)
        self.mask, self.lengths = self.mask[keep], self.lengths[keep]

    def _read(self, distinct: list[tuple[int, ...]], owner: torch.Tensor) -> tuple[DynamicCache, torch.Tensor]:
        """Prefill the distinct prompts; returns the cache of all rows and the last logits of the distinct prompts."""
        mergeable = all(type(layer) is DynamicLayer for layer in DynamicCache(config=self.model.config).layers)
        budget = PREFILL_TOKENS if mergeable else len(distinct) * self.width
        chunks = list(split_by_budget(range(len(distinct)), [len(prompt) for prompt in distinct], budget))
        parts = [self._read_chunk([distinct[i] for i in chunk]) for chunk in chunks]
        logits = torch.cat([part[1] for part in parts])
        cache = parts[0][0]
        if not mergeable:
            # Sliding and recurrent layers keep their own kind of state; they know how to copy rows.
            cache.batch_select_indices(owner)
            return cache, logits
        for i in range(len(cache.layers)):
            keys = torch.cat([self._widen(part[0].layers[i], "keys") for part in parts])
            values = torch.cat([self._widen(part[0].layers[i], "values") for part in parts])
            cache.layers[i] = _GrowingLayer(keys, values, owner, self.cache_dtype)
        return cache, logits

    def _widen(self, layer: object, name: str) -> torch.Tensor:
        states: torch.Tensor = getattr(layer, name)
        return torch.nn.functional.pad(states, (0, 0, self.width - states.shape[-2], 0))

    def _read_chunk(self, prompts: list[tuple[int, ...]]) -> tuple[DynamicCache, torch.Tensor]:
        width = len(prompts[-1])
        rows = np.full((len(prompts), width), self.pad_id, dtype=np.int64)
        for row, prompt in zip(rows, prompts, strict=True):
            row[width - len(prompt) :] = prompt
        pads = torch.tensor([width - len(prompt) for prompt in prompts], device=self.model.device)[:, None]
        columns = torch.arange(width, device=self.model.device)[None]
        cache = DynamicCache(config=self.model.config)
        output = self.model(
            input_ids=torch.from_numpy(rows).to(self.model.device),
            attention_mask=(columns >= pads).long(),
            position_ids=(columns - pads).clamp(min=0),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return cache, output.logits[:, -1]


def _look_every(device: torch.device) -> int:
    return 1 if device.type == "cpu" else CUDA_CHECK_EVERY


def draw(
    logits: torch.Tensor, uniforms: torch.Tensor, temperature: float, top_p: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token a row by inverse-CDF sampling, or take the best at temperature 0.

    Args:
        logits: (rows, vocabulary).
        uniforms: (rows,) numbers in [0, 1), float64.
        temperature: as of `generate_batch`.
        top_p: likewise; not read at temperature 0.

    Returns:
        Tokens (rows,) and their log-probabilities in float32, see `generate_batch`.
    """
    logprobs = torch.log_softmax(logits.float() / (temperature or 1.0), dim=-1)
    if temperature == 0:
        token = logprobs.argmax(dim=-1, keepdim=True)
    else:
        probabilities = logprobs.exp() if top_p == 1 else nucleus(logprobs.exp(), top_p)
        cdf = probabilities.cumsum(dim=-1, dtype=torch.float64)
        # Below the total, so that rounding can never point behind the last token of positive probability.
        point = uniforms.clamp(max=1 - 2**-40)[:, None] * cdf[:, -1:]
        token = torch.searchsorted(cdf, point, right=True)
    return token[:, 0], logprobs.gather(-1, token)[:, 0]


def nucleus(probabilities: torch.Tensor, top_p: float) -> torch.Tensor:
    """The probabilities with 0 for every token before which, in falling order, at least `top_p` is held already.

    So the most probable token always stays, and what stays holds at least `top_p`. Ties go to the smaller token.

    Args:
        probabilities: (rows, vocabulary).
        top_p: in (0, 1].
    """
    ordered, tokens = probabilities.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1, dtype=torch.float64) - ordered
    return torch.zeros_like(probabilities).scatter(-1, tokens, torch.where(before < top_p, ordered, 0.0))


def _collect(tokens_RT: torch.Tensor, logprobs_RT: torch.Tensor, stops: BatchStops) -> list[Sample]:
    samples = []
    for row, (tokens, logprobs) in enumerate(zip(tokens_RT.tolist(), logprobs_RT.tolist(), strict=True)):
        end = stops.end_of(row, tokens)
        samples.append(Sample(tuple(tokens[:end]), tuple(logprobs[:end]), "length" if end is None else "stop"))
    return samples
