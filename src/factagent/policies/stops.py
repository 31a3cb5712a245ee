"""Stop strings: where a reply that is sampled token by token first holds one.

A stop string may be spelled by many tokens, and by other tokens each time, so it has to be looked for in text. To keep
that cheap, text is decoded only when the token just sampled could complete a stop string, and then only as many of the
last tokens as a stop string has bytes. (A token that writes nothing, in the middle of a stop string, hides it from
here; a protocol reads the whole reply and loses nothing by it.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_INCOMPLETE = "\ufffd"
"""How a token shows whose bytes are only a part of a character."""


class StopStrings:
    """Some stop strings, as one tokenizer writes them.

    Args:
        tokenizer: whose tokens the replies are.
        stops: at least one string, none empty.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stops: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self.stops = tuple(stops)
        ends = {stop[-1] for stop in stops} | {_INCOMPLETE}
        texts = self._decode([[token] for token in range(len(tokenizer))])
        self.closing = frozenset(token for token, text in enumerate(texts) if not ends.isdisjoint(text))
        """The tokens that can complete a stop string."""
        self._tail = max(len(stop.encode()) for stop in stops)

    def end_of(self, tokens: Sequence[int], start: int = 0) -> int | None:
        """The length of a reply that ends with the first stop string, or None where there is none.

        Args:
            tokens: the reply; no stop string is complete within its first `start` tokens.
        """
        for position in range(start, len(tokens)):
            if tokens[position] in self.closing:
                [text] = self._decode([tokens[max(0, position + 1 - self._tail) : position + 1]])
                if any(stop in text for stop in self.stops):
                    return position + 1
        return None

    def _decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        texts = self._tokenizer.batch_decode(
            [list(row) for row in rows], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return [str(text) for text in texts]


class BatchStops:
    """What ends the rows of one batch: tokens, the same for all, and strings, for each row its own."""

    def __init__(self, ids: Sequence[int], strings: Sequence[StopStrings | None], device: torch.device) -> None:
        self._ids = frozenset(ids)
        self._tokens = torch.tensor(sorted(self._ids), device=device, dtype=torch.long)
        self._strings = strings
        closing = sorted({token for stops in set(strings) if stops is not None for token in stops.closing})
        self._closing = torch.tensor(closing, device=device, dtype=torch.long)
        self._marked = 0

    def are_stops(self, token: torch.Tensor) -> torch.Tensor:
        """Which of the tokens end a reply by themselves."""
        return torch.isin(token, self._tokens)

    def mark(self, done: torch.Tensor, tokens_RT: torch.Tensor, rows: torch.Tensor, count: int) -> None:
        """Set `done` (one entry an entry of `rows`) where a stop string was completed since the last call.

        Args:
            tokens_RT: all that is sampled, `count` tokens a row.
            rows: the rows that are still decoded.
        """
        start, self._marked = self._marked, count
        if len(self._closing) == 0:
            return
        closes = torch.isin(tokens_RT[rows, start:count], self._closing).any(dim=1) & ~done
        for position in closes.nonzero()[:, 0].tolist():
            row = int(rows[position])
            strings = self._strings[row]
            if strings is not None and strings.end_of(tokens_RT[row, :count].tolist(), start) is not None:
                done[position] = True

    def end_of(self, row: int, tokens: Sequence[int]) -> int | None:
        """The length of a row's reply up to what ended it; None where nothing did."""
        stop = next((i for i, token in enumerate(tokens) if token in self._ids), None)
        by_token = None if stop is None else stop + 1
        strings = self._strings[row]
        by_string = None if strings is None else strings.end_of(tokens[:by_token])
        return by_token if by_string is None else by_string
