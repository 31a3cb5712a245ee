"""What a policy is: prompts in, generations out, in batches."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from factagent.episode import NeedsGeneration
from factagent.errors import ServiceError
from factagent.protocols.state import State
from factagent.types import Generation, Message


class PolicyError(ServiceError):
    """A generation failed (endpoint down, time-out, malformed reply). Its trajectory leaves the statistics."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One generation that an episode waits for.

    `state` is for scripted policies; models read `messages` (and what follows `prefix`, see `episode.NeedsGeneration`).
    `key` names the random draws of this generation (run, step, question, member, round), so that neither the batch it
    falls into nor a retry changes what is sampled. `continuation`, its cut and `stop` are for policies with tokens.
    """

    messages: tuple[Message, ...]
    state: State
    prefix: Generation | None
    key: tuple[str | int, ...]
    continuation: str | None = None
    continuation_tokens: int | None = None
    stop: tuple[str, ...] = ()

    @classmethod
    def of(cls, need: NeedsGeneration, key: tuple[str | int, ...]) -> Self:
        """What an episode needs, under the key of that episode; its round is appended."""
        draws = (*key, need.state.round)
        return cls(
            need.messages, need.state, need.prefix, draws, need.continuation, need.continuation_tokens, need.stop
        )


class Policy(Protocol):
    """Anything that writes replies: a scripted expert, a local model, an endpoint."""

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """One generation a request, in order. The result for a request does not depend on the others."""
        ...


class AsyncPolicy(Protocol):
    """A policy behind a network: one request at a time, many at once, safe for concurrent calls on one event loop."""

    async def generate(self, request: GenerationRequest) -> Generation:
        """The reply to one request.

        Raises:
            PolicyError: the endpoint failed within its budget; an empty reply is never used for a failure.
        """
        ...


def seed_of(key: Sequence[str | int]) -> int:
    """A 64-bit seed from a name, the same on every machine and in every process."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in key)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
