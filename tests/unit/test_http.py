from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from factagent.http import (
    CallFailure,
    FailureKind,
    PollRule,
    RetryRule,
    TimeLimits,
    printable,
    retry_after_s,
    retrying,
)

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
RESET = CallFailure(FailureKind.RESET, "the connection broke")


def status(code: int, asked_s: float | None = None) -> CallFailure:
    return CallFailure(FailureKind.HTTP_STATUS, f"answered {code}", status=code, retry_after_s=asked_s)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("0", 0.0),
        (" 7 ", 7.0),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("٣", None),
        ("9" * 10_000, 1e9),
        ("Sat, 21 Nov 2026 12:00:30 GMT", 30.0),
        ("Sat, 21 Nov 2026 12:00:30", 30.0),
        ("Sat, 21 Nov 2026 11:00:00 GMT", 0.0),
        ("Sat, 99 Nov 2026 11:00:00 GMT", None),
    ],
)
def test_retry_after_is_a_number_or_a_date(header: str | None, seconds: float | None) -> None:
    assert retry_after_s(header, NOW) == seconds


def test_only_what_may_pass_is_tried_again() -> None:
    rule = RetryRule(first_wait_s=0)
    kinds = [kind for kind in FailureKind if rule.wait_s(1, CallFailure(kind, "")) is not None]
    assert kinds == ["refused", "timeout", "reset"]
    assert [code for code in range(300, 600) if rule.wait_s(1, status(code)) is not None] == [429, 502, 503, 504]
    assert rule.wait_s(5, RESET) is None


def test_waits_are_spread_over_the_whole_range_and_grow() -> None:
    rule = RetryRule(first_wait_s=1, growth=4, longest_wait_s=30)
    for tries, ceiling in ((1, 1), (2, 4), (3, 16), (4, 30)):
        waits = [wait for _ in range(400) if (wait := rule.wait_s(tries, RESET)) is not None]
        assert len(waits) == 400
        assert 0 <= min(waits) < 0.1 * ceiling
        assert 0.9 * ceiling < max(waits) <= ceiling


def test_a_servers_wish_is_a_lower_bound_up_to_a_minute() -> None:
    rule = RetryRule(first_wait_s=1)
    for asked, least in ((0.0, 0.0), (20.0, 20.0), (7200.0, 60.0)):
        wait = rule.wait_s(1, status(429, asked))
        assert wait is not None
        assert least <= wait <= least + 1


def test_polling_waits_for_what_may_come_up_only() -> None:
    rule = PollRule(first_s=0.1, longest_s=2)
    assert [rule.wait_s(tries, RESET) for tries in (1, 2, 3, 100_000)] == [0.1, 0.2, 0.4, 2]
    assert rule.wait_s(1, status(500)) == 0.1
    assert rule.wait_s(1, status(401)) is None
    assert rule.wait_s(1, CallFailure(FailureKind.BAD_JSON, "")) is None


@pytest.mark.parametrize("bad", [{"tries": 0}, {"tries": 6}, {"first_wait_s": -1}, {"growth": 0.5}])
def test_a_rule_that_breaks_the_bounds_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        RetryRule(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["connect_s", "read_s", "write_s", "pool_s", "total_s"])
def test_no_time_limit_can_be_left_out(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name}="):
        TimeLimits(**{name: value})


def failing(*failures: CallFailure) -> Callable[[], object]:
    """A call that fails this way, one after another, and then returns "done"."""
    left = list(failures)

    async def once() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return once


def outcome(once: Callable[[], object], rule: RetryRule | PollRule, total_s: float) -> object:
    """What `retrying` returns, or the failure it raises."""
    try:
        return asyncio.run(retrying(once, rule, total_s))  # type: ignore[arg-type]
    except CallFailure as failure:
        return failure


QUICK = RetryRule(first_wait_s=0.001, longest_wait_s=0.002)


def test_four_failures_cost_nothing_and_the_fifth_is_raised_with_what_was_spent() -> None:
    assert outcome(failing(*[RESET] * 4), QUICK, 60) == "done"
    failure = outcome(failing(*[status(503) for _ in range(5)]), QUICK, 60)
    assert isinstance(failure, CallFailure)
    assert (failure.kind, failure.status, failure.tries) == ("http_status", 503, 5)
    assert failure.seconds > 0
    assert failure.spent.startswith("after 5 tries in ")


def test_what_cannot_pass_is_raised_at_once() -> None:
    failure = outcome(failing(status(404)), QUICK, 60)
    assert isinstance(failure, CallFailure)
    assert (failure.status, failure.spent) == (404, "after 1 try in 0.0 s")


def test_a_wait_that_would_outlast_the_budget_is_not_begun() -> None:
    failure = outcome(failing(status(429, 50)), RetryRule(first_wait_s=0), 20)
    assert isinstance(failure, CallFailure)
    assert failure.kind == "budget"
    assert failure.seconds < 10
    assert failure.detail == "the budget of 20 s does not allow for a wait of 50.0 s; before that: answered 429"


def test_a_try_is_cut_off_where_the_budget_ends() -> None:
    cancelled = []

    async def hang() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    failure = outcome(hang, QUICK, 0.05)
    assert isinstance(failure, CallFailure)
    assert (failure.kind, failure.tries, cancelled) == ("budget", 1, [True])
    assert failure.detail == "the budget of 0.05 s ended in the middle of a try"


def test_cancelling_the_caller_is_no_failure() -> None:
    async def cancel() -> None:
        task = asyncio.create_task(retrying(lambda: asyncio.sleep(3600), QUICK, 3600))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())


def test_foreign_text_is_one_printable_line() -> None:
    assert printable("a\n  b\x1b[31mred\u202e") == "a b\ufffd[31mred\ufffd"
    assert printable("x" * 1000, 10) == "xxxxxxx..."
