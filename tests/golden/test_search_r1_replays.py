"""Real runs of Search-R1 checkpoints, reply by reply through our protocol, end in the recorded prediction.

What our protocol puts behind a search is what stands in the record, but for the quotes of titles, which the corpus of
some runs did not have, and for runs of blanks and invisible characters, which we do not show.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from factagent.episode import Episode, NeedsPassages
from factagent.protocols.search_r1 import SearchR1Protocol
from factagent.protocols.state import State
from factagent.protocols.untrusted import plain_line
from factagent.rows import read_rows
from factagent.types import Answer, Generation, Passage, Question, Search, Trajectory

OBSERVED = re.compile(r"\n\n<information>(.*?)</information>\n\n", re.DOTALL)
QUOTED_TITLE = re.compile(r'\(Title: "(.*?)"\)(?= )')
DOCUMENT = re.compile(r'^Doc \d+\(Title: (?:"(.*?)"|(.*?))\) (.*)$', re.MULTILINE)


@pytest.mark.parametrize(("name", "runs", "searches"), [("nq", 1_000, 999), ("bamboogle", 125, 236)])
def test_every_recorded_run_replays(shared_data: Path, name: str, runs: int, searches: int) -> None:
    count = sent = 0
    for row in read_rows(shared_data / "trajectories" / f"search_r1.{name}.jsonl.gz"):
        response = row.text("response")
        trajectory = replay(Question(row.text("id"), row.text("question"), row.texts("golden_answers")), response)
        assert (trajectory.answer or "") == row.text("pred", ""), row.text("id")
        own = OBSERVED.sub("", response)
        written = re.findall(r"<(search|answer)>(.*?)</(?:search|answer)>", own, re.DOTALL)
        assert shown(trajectory) == [documents(found) for found in OBSERVED.findall(response)], row.text("id")
        assert actions(trajectory) == [(tag, " ".join(text.split())) for tag, text in written], row.text("id")
        count += 1
        sent += sum(isinstance(step.action, Search) for step in trajectory.steps)
    assert (count, sent) == (runs, searches)


def replay(question: Question, response: str) -> Trajectory:
    """Feed the replies of a recorded text, and what came back after each, to an episode."""
    replies = OBSERVED.split(response)[::2]
    observations = OBSERVED.findall(response)
    episode = Episode(question, SearchR1Protocol(), max_rounds=len(replies))
    for index, reply in enumerate(replies):
        episode.feed_generation(Generation(reply))
        if isinstance(episode.request, NeedsPassages):
            found = DOCUMENT.findall(observations[index])
            passages = [Passage(str(i), quoted or plain, text) for i, (quoted, plain, text) in enumerate(found)]
            episode.feed_passages(passages)
    assert episode.request is None
    return episode.trajectory


def shown(trajectory: Trajectory) -> list[list[str]]:
    """What the protocol puts behind each reply that brought passages, without the tags and blank lines around it."""
    protocol = SearchR1Protocol()
    found = []
    for count, step in enumerate(trajectory.steps, 1):
        if step.observation is not None:
            text = protocol.continuation(State(Question("q", "?", ()), count + 1, steps=trajectory.steps[:count]))
            found += [documents(inside) for inside in OBSERVED.findall(text)]
    return found


def documents(passages: str) -> list[str]:
    """The lines of an observation that hold a whole title; the cut at 500 tokens may leave one that does not."""
    lines = [plain_line(line) for line in passages.split("\n") if DOCUMENT.match(line)]
    return [QUOTED_TITLE.sub(r"(Title: \1)", line, count=1) for line in lines]


def actions(trajectory: Trajectory) -> list[tuple[str, str]]:
    found = []
    for step in trajectory.steps:
        if isinstance(step.action, Search):
            found.append(("search", step.action.query))
        elif isinstance(step.action, Answer):
            found.append(("answer", " ".join(step.action.response.split())))
    return found
