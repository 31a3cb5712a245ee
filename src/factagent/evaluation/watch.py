"""Failures of servers: when to stop asking, how to wait, when to give up (reliability.md, R7)."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable

from factagent.errors import TryAgainError
from factagent.evaluation.config import FailureConfig

FEWEST = 10
"""Outcomes below which a share says nothing."""

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 30.0


class FailureWatch:
    """Looks at the last questions and says when too many of them failed.

    Args:
        config: window, share and patience.
        sleep: how to wait.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        config: FailureConfig,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._sleep = sleep
        self._clock = clock
        self._outcomes: deque[bool] = deque(maxlen=config.window)
        self._paused_at: float | None = None
        self._next_s = FIRST_WAIT_S
        self.last_error: str | None = None

    def note(self, failed: bool, error: str | None = None) -> None:
        """Take the outcome of one question."""
        self._outcomes.append(failed)
        self.last_error = error or self.last_error

    @property
    def tripped(self) -> bool:
        """Whether more than the allowed share of the last questions failed."""
        count = len(self._outcomes)
        return count >= FEWEST and sum(self._outcomes) > self._config.share * count

    async def wait(self) -> None:
        """Wait before the next probe of a pause; the waits double, up to `LONGEST_WAIT_S`.

        Raises:
            TryAgainError: the pause would last longer than the patience.
        """
        if self._paused_at is None:
            self._paused_at, self._next_s = self._clock(), FIRST_WAIT_S
        if self._clock() - self._paused_at + self._next_s <= self._config.patience_s:
            await self._sleep(self._next_s)
            self._next_s = min(2 * self._next_s, LONGEST_WAIT_S)
            return
        raise TryAgainError(
            f"more than {self._config.share:.0%} of the last questions failed, and for {self._config.patience_s:g} s "
            f"none succeeded; the last error: {self.last_error or 'unknown'}"
        )

    def recovered(self) -> None:
        """End the pause and forget the failures: the servers answer again."""
        self._paused_at = None
        self._outcomes.clear()
