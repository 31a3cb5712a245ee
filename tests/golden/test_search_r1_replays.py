"""Real runs of Search-R1 checkpoints, reply by reply through our protocol, end in the recorded prediction."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from factagent.episode import Episode, NeedsPassages
from factagent.protocols.search_r1 import SearchR1Protocol
from factagent.rows import read_rows
from factagent.types import Answer, Generation, Passage, Question, Search, Trajectory

OBSERVED = re.compile(r"\n\n<information>(.*?)</information>\n\n", re.DOTALL)
DOCUMENT = re.compile(r'^Doc \d+\(Title: "?(.*?)"?\) (.*)$', re.MULTILINE)


@pytest.mark.parametrize(("name", "runs", "searches"), [("nq", 1_000, 999), ("bamboogle", 125, 236)])
def test_every_recorded_run_replays(shared_data: Path, name: str, runs: int, searches: int) -> None:
    count = sent = 0
    for row in read_rows(shared_data / "trajectories" / f"search_r1.{name}.jsonl.gz"):
        response = row.text("response")
        trajectory = replay(Question(row.text("id"), row.text("question"), row.texts("golden_answers")), response)
        assert (trajectory.answer or "") == row.text("pred", ""), row.text("id")
        own = OBSERVED.sub("", response)
        written = re.findall(r"<(search|answer)>(.*?)</(?:search|answer)>", own, re.DOTALL)
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
            episode.feed_passages([Passage(str(i), title, text) for i, (title, text) in enumerate(found)])
    assert episode.request is None
    return episode.trajectory


def actions(trajectory: Trajectory) -> list[tuple[str, str]]:
    found = []
    for step in trajectory.steps:
        if isinstance(step.action, Search):
            found.append(("search", step.action.query))
        elif isinstance(step.action, Answer):
            found.append(("answer", " ".join(step.action.response.split())))
    return found
