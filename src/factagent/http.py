"""The rules that every network client of this package follows: time-outs, total budget, retries, kinds of failure.

Standard library only, so that clients of any HTTP library share them. `retrying` is a loop of its own because the three
bounds interact: a try is cut off where the budget ends, a wait that would outlast the budget is not begun, and a server
may ask for a wait; what ended the search, the tries and the seconds must stand in the error.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import TypeVar

from factagent.errors import ServiceError

Result = TypeVar("Result")

RETRIED_STATUSES = frozenset({429, 502, 503, 504})
"""Statuses that say "not now"; any other error would come again."""

LONGEST_RETRY_AFTER_S = 60.0
"""Longest wait that a server's `Retry-After` can impose between two tries."""


class FailureKind(StrEnum):
    """What went wrong with a call, in one stable word."""

    REFUSED = "refused"
    """No connection: nothing listens there, the name is unknown, or TLS was not agreed on."""
    TIMEOUT = "timeout"
    """One of the four time-outs of a try."""
    RESET = "reset"
    """The connection broke before the reply was whole."""
    BAD_HTTP = "bad_http"
    """What answers does not speak HTTP, or not as it was asked to."""
    HTTP_STATUS = "http_status"
    """A status other than 200; a redirect is one, for none is followed."""
    BAD_JSON = "bad_json"
    BAD_SCHEMA = "bad_schema"
    TOO_LARGE = "too_large"
    """More bytes than the limit; the rest was not read."""
    BUDGET = "budget"
    """The total budget ended the call, between tries or in the middle of one."""


_PASSING = frozenset({FailureKind.REFUSED, FailureKind.TIMEOUT, FailureKind.RESET})


class CallFailure(ServiceError):
    """A try failed, or a whole call; the clients turn it into the error of their layer.

    Attributes:
        kind: what went wrong.
        detail: the same in words, without URL.
        status: the HTTP status, where there was one.
        retry_after_s: the wait that the server asked for, where it did.
        tries: tries made, and `seconds` spent on all of them (0 until `retrying` has given up).
    """

    def __init__(
        self, kind: FailureKind, detail: str, *, status: int | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(detail)
        self.kind, self.detail, self.status, self.retry_after_s = kind, detail, status, retry_after_s
        self.tries = 0
        self.seconds = 0.0

    @property
    def is_passing(self) -> bool:
        """True where another try may succeed: a failure of the transport, or one of `RETRIED_STATUSES`."""
        return self.kind in _PASSING or (self.kind is FailureKind.HTTP_STATUS and self.status in RETRIED_STATUSES)

    def reworded(self, detail: str) -> CallFailure:
        """The same failure in other words."""
        twin = CallFailure(self.kind, detail, status=self.status, retry_after_s=self.retry_after_s)
        twin.tries, twin.seconds = self.tries, self.seconds
        return twin

    @property
    def spent(self) -> str:
        """Tries and seconds as errors show them: `after 3 tries in 1.2 s`."""
        return f"after {self.tries} {'try' if self.tries == 1 else 'tries'} in {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Four time-outs of a try and the budget of a whole call, retries and waits included; seconds.

    Args:
        connect_s: until the connection stands.
        read_s: between two pieces of the reply. A reply that drips is ended by `total_s` only.
        write_s: between two pieces of the request.
        pool_s: until a pooled connection is free.
        total_s: for everything.

    Raises:
        ValueError: a limit is not above 0.
    """

    connect_s: float = 5.0
    read_s: float = 30.0
    write_s: float = 10.0
    pool_s: float = 30.0
    total_s: float = 120.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not 0 < (value := getattr(self, name)) < float("inf"):
                raise ValueError(f"{name}={value} must be a number of seconds above 0")


@dataclass(frozen=True, slots=True)
class RetryRule:
    """How often an idempotent call is tried, and how long is waited in between.

    The wait after try n is uniform in [0, min(longest_wait_s, first_wait_s * growth^(n-1))]: full jitter, so that many
    clients of a server that comes back do not all return in the same moment. The defaults span an outage of about 20 s
    on average and 40 s at most.

    Raises:
        ValueError: `tries` is not 1 to 5, or a wait is out of range.
    """

    tries: int = 5
    first_wait_s: float = 0.5
    growth: float = 4.0
    longest_wait_s: float = 30.0

    def __post_init__(self) -> None:
        if not 1 <= self.tries <= 5:
            raise ValueError(f"tries={self.tries} must be 1 to 5")
        if not (0 <= self.first_wait_s <= self.longest_wait_s < float("inf") and 1 <= self.growth < float("inf")):
            raise ValueError(f"{self} must have 0 <= first_wait_s <= longest_wait_s and growth >= 1, all finite")

    def wait_s(self, tries: int, failure: CallFailure) -> float | None:
        """Seconds to wait after try number `tries`; None where it was the last, or another would fail the same way.

        What a server asks for is a lower bound: what is added on top (up to `first_wait_s`) keeps clients apart.
        """
        if tries >= self.tries or not failure.is_passing:
            return None
        if failure.retry_after_s is not None:
            return min(failure.retry_after_s, LONGEST_RETRY_AFTER_S) + random.uniform(0, self.first_wait_s)
        return random.uniform(0, min(self.longest_wait_s, self.first_wait_s * self.growth ** (tries - 1)))


@dataclass(frozen=True, slots=True)
class PollRule:
    """How a server that may still be starting is asked again: without end, in steps that double up to `longest_s`.

    What cannot pass by waiting (a wrong token, another protocol) ends it at once.
    """

    first_s: float = 0.1
    longest_s: float = 2.0

    def wait_s(self, tries: int, failure: CallFailure) -> float | None:
        """Seconds until the next look; None where waiting is of no use."""
        if not failure.is_passing and (failure.status is None or failure.status < 500):
            return None
        return min(self.longest_s, self.first_s * 2.0 ** min(tries - 1, 30))


async def retrying(once: Callable[[], Awaitable[Result]], rule: RetryRule | PollRule, total_s: float) -> Result:
    """Await `once()` until it succeeds, under the rule and within the budget.

    Args:
        once: makes one try; says by a `CallFailure` that it failed. It is cancelled where the budget ends.
        rule: tries and waits.
        total_s: the budget, in seconds, tries and waits together.

    Raises:
        CallFailure: the last failure, with tries and seconds, or one of kind `budget`.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    last: CallFailure | None = None
    tries = 0
    while True:
        tries += 1
        try:
            async with asyncio.timeout_at(began + total_s):
                return await once()
        except TimeoutError:
            failure = _out_of_budget(total_s, "ended in the middle of a try", last)
        except CallFailure as error:
            failure = error
            if (wait := rule.wait_s(tries, error)) is not None:
                if loop.time() - began + wait < total_s:
                    last = error
                    await asyncio.sleep(wait)
                    continue
                failure = _out_of_budget(total_s, f"does not allow for a wait of {wait:.1f} s", error)
        failure.tries, failure.seconds = tries, loop.time() - began
        raise failure


def _out_of_budget(total_s: float, how: str, last: CallFailure | None) -> CallFailure:
    before = "" if last is None else f"; before that: {last.detail}"
    status = None if last is None else last.status
    return CallFailure(FailureKind.BUDGET, f"the budget of {total_s:g} s {how}{before}", status=status)


def retry_after_s(header: str | None, now: datetime | None = None) -> float | None:
    """Seconds that a `Retry-After` header asks for (a number or an HTTP date); None where it is absent or nonsense."""
    text = (header or "").strip()
    if text.isascii() and text.isdigit():
        # Longer numbers mean "never"; int() itself refuses those of thousands of digits.
        return float(int(text)) if len(text) <= 9 else float(10**9)
    try:
        then = parsedate_to_datetime(text)
    except ValueError:
        return None
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    return max(0.0, (then - (now or datetime.now(UTC))).total_seconds())


def printable(text: str, limit: int = 200) -> str:
    """Foreign text as an error may show it: one line, no control characters, at most `limit` characters."""
    shown = "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text[: 4 * limit].split()))
    return shown if len(shown) <= limit else f"{shown[: limit - 3]}..."
