"""What a policy is: prompts in, generations out, in batches."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from factagent.errors import ServiceError
from factagent.protocols.state import State
from factagent.types import Generation, Message


class PolicyError(ServiceError):
    """A generation failed (endpoint down, time-out, malformed reply). Its trajectory leaves the statistics."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One generation that an episode waits for.

    `state` is for scripted policies; models read `messages` (and `prefix`, see `episode.NeedsGeneration`). `key` names
    the random draws of this generation (run, step, question, member, round), so that neither the batch it falls into
    nor a retry changes what is sampled.
    """

    messages: tuple[Message, ...]
    state: State
    prefix: Generation | None
    key: tuple[str | int, ...]


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
