"""The tiny policy: a Qwen2-architecture model whose tokenizer holds the words of a corpus as single tokens.

What it simplifies: a language model learns to copy names piece by piece; with 1-3 million parameters that alone takes
most of the training. With a word a token, and the boilerplate of the JSON actions a token each, a small model has
capacity left for what the project is about: what to search for, what to keep, when to answer. Any other text still
encodes, byte by byte, and decodes to itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from factagent.types import Passage, Question, Triple

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

PAD, END, SYSTEM, USER, ASSISTANT = "<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"

BOILERPLATE = (
    "<think>",
    '</think>{"action":"search","parameters":{"query":"',
    '</think>{"action":"answer","parameters":{"response":"',
    '</think>{"action":"assert","parameters":{"triples":[{"subject":"',
    '","relation":"',
    '","object":"',
    '"},{"subject":"',
    '"}}',
    '"}]}}',
)
"""The parts of the terse JSON actions, in the order in which they appear."""

MARKS = ("Q", "\n-", "\n*", "\n?", "\nR", " |", " :")
"""Line marks of the terse prompt."""

_THOUGHTS = ("find", "keep", "done", "unknown")
_WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")

_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


class TinyConfig(BaseModel):
    """Size of the tiny policy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hidden_size: int = Field(default=128, ge=8)
    layers: int = Field(default=4, ge=1)
    heads: int = Field(default=4, ge=1)
    intermediate_size: int = Field(default=384, ge=8)
    max_positions: int = Field(default=1024, ge=64)
    seed: int = 0


def collect_words(
    passages: Iterable[Passage], questions: Iterable[Question], triples: Iterable[Triple], limit: int = 8000
) -> list[str]:
    """The words of a corpus and its questions, most frequent first, ties by spelling; at most `limit`."""
    counts: Counter[str] = Counter()
    for passage in passages:
        counts.update(_WORD.findall(f"{passage.title} {passage.text}"))
    for question in questions:
        counts.update(_WORD.findall(" ".join((question.text, *question.answers))))
    for triple in triples:
        counts.update(_WORD.findall(triple.text))
    return sorted(counts, key=lambda word: (-counts[word], word))[:limit]


def build_tokenizer(words: Iterable[str]) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer in which each word with its leading blank, each mark and each boilerplate is one token."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in (PAD, END, SYSTEM, USER, ASSISTANT)])
    numbers = (str(number) for number in range(1, 10))
    plain = dict.fromkeys((*BOILERPLATE, *MARKS, *(f" {w}" for w in (*_THOUGHTS, *numbers, *words))))
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in plain if len(token) > 1])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=END)
    fast.chat_template = _CHAT_TEMPLATE
    return fast


def build_model(config: TinyConfig, tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    """A Qwen2 model with random weights drawn from `config.seed`."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=len(tokenizer),
                hidden_size=config.hidden_size,
                intermediate_size=config.intermediate_size,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                num_key_value_heads=config.heads,
                max_position_embeddings=config.max_positions,
                tie_word_embeddings=True,
                bos_token_id=None,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        )
