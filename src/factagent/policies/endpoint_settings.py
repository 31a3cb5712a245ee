"""The settings of the endpoint policy; reading them needs nothing beyond the core."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

KEY_VARIABLE = "OPENAI_API_KEY"
"""The environment variable that holds the key unless another one is named."""


class EndpointSettings(BaseModel):
    """Where the model is served and how replies are asked for. Times are in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    """Base URL, which usually ends in `/v1`."""
    model: str | None = None
    """Name of the model; None takes the only one that the server lists."""
    api: Literal["chat", "completion"] = "chat"
    tokenizer: Path | None = None
    """For completions: a tokenizer directory whose chat template makes the prompt (sent as token ids). None: the plain
    template, `User:` and `Assistant:` before each message."""
    temperature: float | None = Field(default=0.0, ge=0)
    """0 is greedy. None leaves it to the server."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int = Field(default=1024, ge=1)
    max_tokens_key: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """What the server calls the limit."""
    stop: tuple[str, ...] = ()
    """Strings that end a reply."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Further keys of the request, such as `top_k` or `chat_template_kwargs`."""
    concurrency: int = Field(default=16, ge=1)
    """Requests at a time."""
    connect_timeout_s: float = Field(default=10.0, gt=0)
    write_timeout_s: float = Field(default=30.0, gt=0)
    pool_timeout_s: float = Field(default=30.0, gt=0)
    liveness_timeout_s: float = Field(default=120.0, gt=0)
    """Longest wait for the next piece of a streamed reply, the first included. Also the read time-out."""
    total_timeout_s: float = Field(default=600.0, gt=0)
    """For one generation with all its tries and pauses; waiting for a free slot is not counted."""
    tries: int = Field(default=5, ge=1, le=5)
    """Tries a generation, the first included: after 408, 409, 429, 5xx, a broken connection or a silent server."""
    first_wait_s: float = Field(default=0.5, ge=0, le=30)
    """The longest wait before the second try; it grows fourfold with each further one, see `http.RetryRule`."""
    stream: bool = True
    """False for a server that cannot stream; then only `total_timeout_s` notices that it hangs."""
    usage: bool = True
    """Ask a stream for its token counts. False for a server that refuses `stream_options`; counts are then unknown."""
    api_key_env: str = KEY_VARIABLE
    """Environment variable with the key. Without it no key is sent."""

    @field_validator("url")
    @classmethod
    def _web_address(cls, url: str) -> str:
        if not re.fullmatch(r"https?://[^/\s?#]+(/[^\s?#]*)?", url):
            raise ValueError("must be the http:// or https:// base URL of an API, such as http://localhost:8000/v1")
        if "@" in url.split("/")[2]:
            raise ValueError("must hold no user or password; a key comes from an environment variable, see api_key_env")
        return url.rstrip("/")

    @model_validator(mode="after")
    def _fitting_keys(self) -> Self:
        if self.tokenizer is not None and self.api != "completion":
            raise ValueError("tokenizer is for api = 'completion'; a chat server has its own")
        return self
