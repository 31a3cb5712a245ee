"""What `factagent ask` shows: each round as it is played, then the answer with its facts and their sources.

Questions, replies and passages are text that others wrote. They are shown as one visible line each, so that no escape
sequence reaches the terminal, and never read as markup.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from factagent.episode import Episode
from factagent.evaluation.provenance import SourcedFact, sourced_facts
from factagent.protocols.untrusted import plain_line
from factagent.retrieval.bm25_build import Report
from factagent.rollout_async import Finished, OnStep
from factagent.types import Answer, Assert, Passage, Search, StopReason, Trajectory

_TEXT_CHARS = 200
_WHY = {
    StopReason.OUT_OF_ROUNDS: "no round was left; --max-rounds allows more",
    StopReason.NO_ANSWER: "the last reply held no valid action",
    StopReason.PROMPT_TOO_LONG: "the prompt no longer fits the model's context; --top-k shows it fewer passages",
}


@contextmanager
def watch(max_rounds: int, *, shown: bool) -> Iterator[OnStep | None]:
    """Show rounds on standard error while they are played; yields what to call after each, None where `shown` is not.

    Args:
        max_rounds: rounds that may be played.
        shown: whether anybody looks.
    """
    if not shown:
        yield None
        return
    console = Console(stderr=True, highlight=False)
    with console.status(f"round 1 of {max_rounds}") as status:

        def on_step(episode: Episode) -> None:
            for line in round_lines(episode):
                console.print(line)
            status.update(f"round {len(episode.state.steps) + 1} of {max_rounds}")

        yield on_step


@contextmanager
def indexing(*, shown: bool) -> Iterator[Report | None]:
    """Show on standard error how far an index is; yields what to call, None where `shown` is not."""
    if not shown:
        yield None
        return
    with Console(stderr=True).status("indexing") as status:

        def report(stage: str, done: int, total: int | None) -> None:
            status.update(f"indexing: {stage} {done:,}" + (f" of {total:,}" if total else ""))

        yield report


def round_lines(episode: Episode) -> list[Text]:
    """The round just played: its action, and what came of it."""
    steps = episode.state.steps
    number, step = len(steps), steps[-1]
    head = Text(f"{number} ", style="bold")
    match step.action:
        case Search(query):
            found = step.observation.passages if step.observation is not None else ()
            nothing = [Text("    nothing found", style="dim")]
            return [head.append("search  ", "cyan").append(visible(query)), *(map(_passage_line, found) or nothing)]
        case Assert():
            facts = [sourced for sourced in _facts_of(episode) if sourced.fact.assert_step == number - 1]
            return [head.append("assert", "green"), *(Text(f"    {fact_line(sourced)}") for sourced in facts)]
        case Answer(response):
            return [head.append("answer  ", "bold magenta").append(visible(response))]
        case invalid:
            return [head.append("invalid  ", "red").append(f"{invalid.reason}: {visible(invalid.detail)}")]


def _facts_of(episode: Episode) -> list[SourcedFact]:
    return sourced_facts(Trajectory(episode.state.steps))


def _passage_line(passage: Passage) -> Text:
    line = Text(f"    {passage.score:8.3f}  ", style="dim")
    return line.append(visible(passage.title), "bold").append(f"  {visible(passage.text)}", "dim")


def fact_line(sourced: SourcedFact) -> str:
    """A fact and its source: `Anna | born in | Lund  [Anna, letters/1.md#2]`."""
    triple = " | ".join(map(visible, sourced.fact.triple))
    if sourced.passage is not None:
        return f"{triple}  [{visible(sourced.passage.title)}, {visible(sourced.passage.id)}]"
    source = sourced.fact.source_step
    read = None if source is None else f"not in these words in a passage of round {source + 1}"
    return f"{triple}  [{read or 'no passage was read before'}]"


def print_result(finished: Finished) -> None:
    """Print the answer, or why there is none, and the facts of the final store."""
    trajectory = finished.trajectory
    if trajectory.answer is not None:
        print(visible(trajectory.answer, None))
    else:
        why = _WHY.get(trajectory.stop_reason, trajectory.stop_reason.value.replace("_", " "))
        print(f"No answer: {why}.")
    facts = sourced_facts(trajectory)
    print("\nFacts" if facts else "\nNo facts were asserted.")
    for number, sourced in enumerate(facts, 1):
        print(f"{number}. {fact_line(sourced)}")


def visible(text: str, limit: int | None = _TEXT_CHARS) -> str:
    """Foreign text as one visible line, cut to `limit` characters; what a terminal might obey is dropped."""
    line = plain_line(text)
    return line if limit is None or len(line) <= limit else line[: limit - 3] + "..."
