"""Messages to tokens and back, through a model's own chat template.

Retrieved text, questions and past queries reach the model inside message contents. A content that spells a control
token ("<|im_end|>") would end its message and open another in the model's eyes. So every control token spelled in a
content is broken by a blank behind its first character before the template is filled; the roles of a prompt are then
those of its messages, whatever the passages say (threat model, row 1).

For `append` protocols the tokens of earlier rounds are never encoded again: a prompt continues the very ids that the
policy read and sampled (token in, token out), followed by what the template puts behind a reply, or, in protocols whose
observations stand inside the assistant's turn, by the text of the observation alone. An end token that the policy
sampled before such an observation stays where it is, since the row must hold what was sampled. (Search-R1's own code
loses it, as it encodes its text anew.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from factagent.errors import ConfigError
from factagent.types import Generation, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_REPLY = "\ue000factagent-reply\ue000"
"""Stands for an assistant's reply while the template is taken apart; in contents its private-use marks are dropped."""

_BRACKETED = re.compile(r"<[^\s<>]+>|\[[A-Z_]+\]")
"""How control tokens look that a tokenizer adds without calling them special (<tool_call>, [INST])."""

_OWN_TAGS = (
    *("think", "search", "answer", "information", "documents", "refine", "result", "memory"),
    *("tool_call", "tool_response"),
)
_OWN_MARKS = frozenset(mark for tag in _OWN_TAGS for mark in (f"<{tag}>", f"</{tag}>"))
"""Marks of our own formats: prompts ask for them, so they stay where a tokenizer has them as tokens. The protocols
defuse them in every value that they quote (`protocols.untrusted`)."""


class Inline(NamedTuple):
    """What follows a reply inside the assistant's turn: the reply, the text, and the tokens of the text to keep."""

    prefix: Generation
    text: str
    max_tokens: int | None = None


class ChatCodec:
    """Encodes prompts and decodes replies for one tokenizer.

    Args:
        tokenizer: any fast tokenizer with a chat template.
        stop_ids: further tokens that end a reply (a model's generation config names some).

    Raises:
        ConfigError: the tokenizer has no chat template, or the template refuses a system and a user message, or
            nothing would end a reply.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop_ids: Iterable[int] = ()) -> None:
        if not tokenizer.chat_template:
            raise ConfigError(
                f"tokenizer '{tokenizer.name_or_path}' has no chat template; add 'chat_template' to its "
                "tokenizer_config.json or use the instruction-tuned model"
            )
        self.tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder.items()
        self.control_ids = frozenset(i for i, t in added if t.special or _BRACKETED.fullmatch(t.content))
        spelled = {t.content for i, t in added if i in self.control_ids and t.content} - _OWN_MARKS
        self._control = re.compile("|".join(map(re.escape, sorted(spelled, key=lambda text: (-len(text), text)))))
        self._has_control = bool(spelled)
        # A tokenizer may look for an added token in normalised text; then the same text must be searched here.
        normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
        self._normalizer = normalizer if any(t.normalized for i, t in added if i in self.control_ids) else None
        self.end_id = self._find_end()
        """The token that a reply should end with: what the template writes behind one, else the tokenizer's end."""
        eos = tokenizer.eos_token_id
        self.stop_ids = frozenset([*stop_ids, self.end_id, *([] if eos is None else [eos])])
        """The tokens that end a reply."""

    def neutralise(self, content: str) -> str:
        """Break every control token spelled in a content: "<|im_end|>" becomes "< |im_end|>"."""
        # Lone surrogates have no UTF-8 form, so no tokenizer takes them; they show as "?".
        content = content.replace("\ue000", "").encode("utf-8", "replace").decode("utf-8")
        if self._normalizer is not None:
            content = self._normalizer.normalize_str(content)
        while self._has_control and self._control.search(content):
            content = self._control.sub(lambda found: _broken(found.group()), content)
        return content

    def encode_prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The ids of a prompt that ends where the assistant's reply begins."""
        return self.encode_prompts([messages])[0]

    def encode_prompts(self, prompts: Sequence[Sequence[Message]]) -> list[tuple[int, ...]]:
        """Encode many prompts with one call of the tokenizer."""
        return self._tokenise([self._render(self._clean(messages)) for messages in prompts])

    def encode_continuation(self, messages: Sequence[Message], prefix: Generation) -> tuple[int, ...]:
        """The ids of the next round's prompt of an `append` protocol: `prefix_ids + response_ids + suffix`.

        The suffix is what the template puts behind the last assistant message: its end of turn (left out where the
        reply sampled it), the messages after it, and the opening of the next reply.

        Args:
            messages: the conversation; it holds the assistant message that `prefix` generated, and what came after.
            prefix: the generation to continue. Its tokens are copied, never encoded again.

        Raises:
            ValueError: there is no assistant message to continue.
        """
        return self.encode_continuations([(messages, prefix)])[0]

    def encode_continuations(self, pairs: Sequence[tuple[Sequence[Message], Generation]]) -> list[tuple[int, ...]]:
        """Encode many continuations with one call of the tokenizer."""
        suffixes = self._tokenise([self._suffix(messages) for messages, _ in pairs])
        prompts = []
        for (_, prefix), suffix in zip(pairs, suffixes, strict=True):
            closed = prefix.response_ids[-1:] == suffix[:1] and suffix[:1] == (self.end_id,)
            prompts.append(prefix.prompt_ids + prefix.response_ids + (suffix[1:] if closed else suffix))
        return prompts

    def encode_inline(self, items: Sequence[Inline]) -> list[tuple[int, ...]]:
        """The ids of the next round's prompt where an observation follows the reply in the assistant's own turn.

        `prefix_ids + response_ids + encode(text)[:max_tokens]`, the text without control tokens. The response keeps the
        end token that it may have sampled.
        """
        texts = self._tokenise([self.neutralise(item.text) for item in items])
        return [
            item.prefix.prompt_ids + item.prefix.response_ids + ids[: item.max_tokens]
            for item, ids in zip(items, texts, strict=True)
        ]

    def encode_replies(self, texts: Sequence[str], stop: tuple[str, ...] = ()) -> list[tuple[int, ...]]:
        """The ids that a policy should sample for these replies, end token included (targets of a cold start).

        Only special tokens are broken: a reply may use the marks of its own format, such as "<think>".

        Args:
            texts: the replies.
            stop: strings that end a reply by themselves; no end token follows them.
        """
        special = [token for token in self.tokenizer.all_special_tokens if token]
        cleaned = [_broken_all(text.encode("utf-8", "replace").decode("utf-8"), special) for text in texts]
        return [
            ids if text.endswith(stop) else (*ids, self.end_id)
            for text, ids in zip(texts, self._tokenise(cleaned), strict=True)
        ]

    def decode(self, response_ids: Sequence[int]) -> str:
        """The text of a reply, without the token that ended it."""
        return self.decode_many([response_ids])[0]

    def decode_many(self, responses: Sequence[Sequence[int]]) -> list[str]:
        """Decode replies. Control tokens inside a reply stay visible, so that a parser can refuse them."""
        if not responses:
            return []
        bodies = [list(ids[:-1] if ids and ids[-1] in self.stop_ids else ids) for ids in responses]
        texts = self.tokenizer.batch_decode(bodies, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return [str(text) for text in texts]

    def _find_end(self) -> int:
        self._render([Message("system", "x"), Message("user", "x")])
        suffix = self._suffix([Message("user", "x"), Message("assistant", "x"), Message("user", "x")])
        first = self._tokenise([suffix])[0][:1]
        if first and first[0] in self.control_ids:
            return first[0]
        if self.tokenizer.eos_token_id is None:
            raise ConfigError(
                f"tokenizer '{self.tokenizer.name_or_path}': neither its chat template nor an eos_token ends a reply"
            )
        return int(self.tokenizer.eos_token_id)

    def _clean(self, messages: Sequence[Message]) -> list[Message]:
        return [Message(message.role, self.neutralise(message.content)) for message in messages]

    def _suffix(self, messages: Sequence[Message]) -> str:
        """What the template writes behind the last assistant message."""
        roles = [message.role for message in messages]
        if "assistant" not in roles:
            raise ValueError("no assistant message to continue")
        last = len(roles) - 1 - roles[::-1].index("assistant")
        # What stands before the reply is not looked at; only its roles may matter to the template.
        before = [Message(message.role, "x") for message in messages[:last]]
        text = self._render([*before, Message("assistant", _REPLY), *self._clean(messages[last + 1 :])])
        _, mark, suffix = text.partition(_REPLY)
        if not mark:
            raise ConfigError("the chat template does not show the assistant's replies; append protocols cannot use it")
        return suffix

    def _render(self, messages: Sequence[Message]) -> str:
        from jinja2 import TemplateError

        chat = [{"role": message.role, "content": message.content} for message in messages]
        try:
            return str(self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
        except TemplateError as error:
            roles = ", ".join(message.role for message in messages)
            raise ConfigError(f"the chat template refuses messages of the roles {roles}: {error}") from error

    def _tokenise(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        if not texts:
            return []
        encoded = self.tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False)
        return [tuple(ids) for ids in encoded["input_ids"]]


def _broken(token: str) -> str:
    return f"{token[0]} {token[1:]}" if len(token) > 1 else " "


def _broken_all(text: str, tokens: Sequence[str]) -> str:
    for token in tokens:
        text = text.replace(token, _broken(token))
    return text
