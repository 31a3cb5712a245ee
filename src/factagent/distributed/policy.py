"""verl's sampling servers as an `AsyncPolicy`: token in, token out.

The server is any object with the `generate` of verl's `LLMServerClient`; nothing of verl is imported here. What comes
back is cut where the reply ends by our own rules, so that every sampler ends a reply at the same token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from factagent.episode import OVERLONG
from factagent.policies.base import GenerationRequest, PolicyError, seed_of
from factagent.policies.chat import ChatCodec, Inline
from factagent.policies.stops import StopStrings
from factagent.types import Generation

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TokenServer(Protocol):
    """What samples: prompt tokens in, an object with `token_ids`, `log_probs` and `stop_reason` out."""

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        """The reply to one prompt."""
        ...


class ServerPolicy:
    """An `AsyncPolicy` over a token server.

    Args:
        server: what samples.
        tokenizer: the model's, with a chat template.
        temperature: 0 decodes greedily.
        top_p: draws from the nucleus of this mass.
        max_prompt_tokens: longer prompts end their episode with finish reason "overlong"; nothing is ever cut.
        max_new_tokens: of a reply.
        stop_ids: further tokens that end a reply.
        named_draws: send each request's seed along (the sampler of the CPU run draws by it, as the engine in this
            process does).
        options: further sampling parameters of the server at hand.
    """

    def __init__(
        self,
        server: TokenServer,
        tokenizer: PreTrainedTokenizerBase,
        *,
        temperature: float,
        max_prompt_tokens: int,
        max_new_tokens: int,
        stop_ids: Sequence[int] = (),
        top_p: float = 1.0,
        named_draws: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._server = server
        self._tokenizer = tokenizer
        self.codec = ChatCodec(tokenizer, stop_ids)
        self.max_prompt_tokens = max_prompt_tokens
        self._named_draws = named_draws
        self._parameters: dict[str, Any] = {
            "temperature": temperature,
            "top_p": top_p,
            "top_k": -1,
            "repetition_penalty": 1.0,
            "logprobs": True,
            "max_tokens": max_new_tokens,
            "stop_token_ids": sorted(self.codec.stop_ids),
            **(options or {}),
        }
        self._stops: dict[tuple[str, ...], StopStrings] = {}

    async def generate(self, request: GenerationRequest) -> Generation:
        """The reply to one request; a prompt that does not fit comes back with finish reason "overlong".

        Raises:
            PolicyError: the server failed, was interrupted, or answered without tokens or log-probabilities.
        """
        prompt = self._encode(request)
        if len(prompt) > self.max_prompt_tokens:
            return Generation("", prompt, finish_reason=OVERLONG, prompt_tokens=len(prompt))
        parameters = dict(self._parameters)
        if request.stop:
            parameters["stop"] = list(request.stop)
        if self._named_draws:
            parameters["seed"] = seed_of(request.key)
        try:
            reply = await self._server.generate(uuid4().hex, prompt_ids=list(prompt), sampling_params=parameters)
        # Whatever a remote sampler raises (Ray wraps its errors in types of its own) is a failure of that sampler.
        except Exception as error:
            raise PolicyError(f"the sampling server failed: {type(error).__name__}: {error}") from error
        return self._generation(request, prompt, reply)

    def _generation(self, request: GenerationRequest, prompt: tuple[int, ...], reply: Any) -> Generation:
        tokens, logprobs = list(reply.token_ids), list(reply.log_probs or ())
        if reply.stop_reason == "aborted" or not tokens or len(logprobs) != len(tokens):
            raise PolicyError(
                f"the sampling server sent {len(tokens)} tokens with {len(logprobs)} log-probabilities "
                f"(stop reason {reply.stop_reason}); a reply needs one for each token"
            )
        end = self._end_of(tokens, request.stop)
        reason, end = ("length", len(tokens)) if end is None else ("stop", end)
        (text,) = self.codec.decode_many([tokens[:end]])
        return Generation(text, prompt, tuple(tokens[:end]), tuple(map(float, logprobs[:end])), reason, len(prompt))

    def _end_of(self, tokens: Sequence[int], stop: tuple[str, ...]) -> int | None:
        """Length of the reply up to its first end token or stop string, None where it was cut by its length."""
        token = next((i + 1 for i, token in enumerate(tokens) if token in self.codec.stop_ids), None)
        if not stop:
            return token
        if stop not in self._stops:
            self._stops[stop] = StopStrings(self._tokenizer, stop)
        return self._stops[stop].end_of(tokens[:token]) or token

    def _encode(self, request: GenerationRequest) -> tuple[int, ...]:
        if request.prefix is None:
            return self.codec.encode_prompt(request.messages)
        if request.continuation is None:
            return self.codec.encode_continuation(request.messages, request.prefix)
        return self.codec.encode_inline([Inline(request.prefix, request.continuation, request.continuation_tokens)])[0]
