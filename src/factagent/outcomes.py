"""Outcome rewards: what a trajectory as a whole earns, by name (methods.md, sections 2.4 and 3-12).

Each is total over any reply and linear in its length. What earns is read from the policy's own replies alone, so an
answer tag in a passage earns nothing; where an original looks for the environment's block in its text, here the step's
observation is asked whether there was one. Rewards that judge the format need the text of the replies: a record
without it (scripted offline groups) has none to judge, and they give 0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from types import MappingProxyType

from factagent.errors import UsageError
from factagent.protocols.boxed import last_boxed
from factagent.protocols.tags import cut_behind, first_block, iter_blocks
from factagent.rewards import cover_em, exact_match, f1, f1_multiset, normalize_answer
from factagent.types import Question, Step, Trajectory

FORMAT_ONLY = 0.1
"""A well-formed trajectory whose answer is wrong (ReSearch, MemSearcher), and gold in a refinement (AutoRefine)."""

STRUCTURE, FINAL, RETRIEVAL = 0.2, 0.1, 0.0
"""Search-R1 v0.3: a valid structure, an answer at all, gold among the passages."""

_TAGS = re.compile(r"</?(?:think|search|information|answer)>")
_AFTER = MappingProxyType({
    ("start", "<think>"): "in think", ("in think", "</think>"): "thought",
    ("thought", "<search>"): "in search", ("in search", "</search>"): "searched",
    ("thought", "<answer>"): "in answer", ("in answer", "</answer>"): "end",
})  # fmt: skip


def outcome_reward(name: str, question: Question, trajectory: Trajectory) -> float:
    """The outcome reward of that name, in [0, 1].

    Raises:
        UsageError: there is no outcome reward of that name.
    """
    if name not in OUTCOMES:
        raise UsageError(f"unknown outcome reward '{name}'; choose from {', '.join(OUTCOMES)}")
    return OUTCOMES[name](question, trajectory)


def research(question: Question, trajectory: Trajectory) -> float:
    r"""ReSearch's three levels: 0 for a bad format or a reply that was cut, else F1 where it is positive, else 0.1.

    The format: think tags paired and there; one answer block, with `\boxed{...}` in it; every search tag closed in
    its reply and answered by an observation (methods.md, section 5).
    """
    text = _text(trajectory)
    block = first_block(text, ("answer",))
    boxed = None if block is None else last_boxed(block.content)
    formatted = (
        text.count("<think>") == text.count("</think>") > 0
        and text.count("<answer>") == text.count("</answer>") == 1
        and all(_searches_closed(step) for step in trajectory.steps)
    )
    if boxed is None or not formatted or not _ended(trajectory):
        return 0.0
    return f1(boxed, question.answers) or FORMAT_ONLY


def autorefine(question: Question, trajectory: Trajectory) -> float:
    """AutoRefine: F1 of the last answer where it is positive, else 0.1 where a gold stands in a refinement, else 0.

    Without an answer block it is 0 whatever the refinements hold. Replies count up to their first closed search, else
    answer, as in the protocol (methods.md, section 6; format_score 0).
    """
    text = _text(trajectory, cut=True)
    answers = [block.content for block in iter_blocks(text, ("answer",))]
    if not answers:
        return 0.0
    refined = "\n".join(block.content for block in iter_blocks(text, ("refine",)))
    return f1(answers[-1], question.answers) or FORMAT_ONLY * _contained(question, [refined])


def search_r1_format(question: Question, trajectory: Trajectory) -> float:
    """Search-R1 v0.3: exact match with a reward for structure (methods.md, section 3.4)."""
    answers = [block.content for block in iter_blocks(_text(trajectory, cut=True), ("answer",))]
    passages = [p.text for step in trajectory.steps if step.observation for p in step.observation.passages]
    return search_r1_score(
        correct=bool(answers) and exact_match(answers[-1], question.answers) == 1.0,
        answered=bool(answers),
        valid=is_search_r1_structure(trajectory),
        retrieved=bool(RETRIEVAL) and bool(_contained(question, passages)),
    )


def search_r1_score(*, correct: bool, answered: bool, valid: bool, retrieved: bool = False) -> float:
    """The table of Search-R1 v0.3: 1, 0.8 (right but malformed), 0.2 (well-formed), 0.1 (an answer at all), 0."""
    if correct:
        return 1.0 if valid else 1.0 - STRUCTURE
    if valid:
        return STRUCTURE + (RETRIEVAL if retrieved else 0.0)
    return FINAL if answered else 0.0


def is_search_r1_structure(trajectory: Trajectory) -> bool:
    """Whether the replies go think, search (answered by an observation), think, ..., answer, with blanks between."""
    state = "start"
    for step in trajectory.steps:
        for part, is_tag in _parts(cut_behind(step.generation.text, ("search", "answer"))):
            if is_tag:
                state = _AFTER.get((state, part), "broken")
            elif part.strip() and state not in ("in think", "in search", "in answer"):
                state = "broken"
        if state == "searched" and step.observation is not None:
            state = "start"
        elif state != "end":
            return False
    return state == "end"


def memsearcher(question: Question, trajectory: Trajectory) -> float:
    r"""MemSearcher: 0 for a bad format or a reply that was cut, else F1 where it is positive, else 0.1.

    The format: think tags paired in every reply and there in the first; tool calls paired, each JSON with name and
    arguments; `\boxed{...}` in the last reply (methods.md, section 12.1). An opening think tag that the prompt set
    counts as there.
    """
    replies = [with_opened_thought(step.generation.text) for step in trajectory.steps]
    if not replies or "<think>" not in replies[0] or not _ended(trajectory):
        return 0.0
    boxed = last_boxed(replies[-1])
    if boxed is None or not all(map(_well_formed_call, replies)):
        return 0.0
    return f1(boxed, question.answers) or FORMAT_ONLY


def with_opened_thought(reply: str) -> str:
    """The reply with the opening think tag that a prompt may have set before it."""
    close = reply.find("</think>")
    return f"<think>{reply}" if close >= 0 and "<think>" not in reply[:close] else reply


def _answer_reward(metric: Callable[[str, tuple[str, ...]], float]) -> Callable[[Question, Trajectory], float]:
    """A metric of the answer that the trajectory ends with; 0 without one."""

    def reward(question: Question, trajectory: Trajectory) -> float:
        return 0.0 if trajectory.answer is None else metric(trajectory.answer, question.answers)

    return reward


OUTCOMES: dict[str, Callable[[Question, Trajectory], float]] = {
    "f1": _answer_reward(f1),
    "em": _answer_reward(exact_match),
    "cover-em": _answer_reward(cover_em),
    "f1-multiset": _answer_reward(f1_multiset),
    "research": research,
    "autorefine": autorefine,
    "search-r1-format": search_r1_format,
    "memsearcher": memsearcher,
}
"""Name -> reward. `f1-multiset` is ZeroSearch's: F1 without the rule on yes and no."""


def _text(trajectory: Trajectory, *, cut: bool = False) -> str:
    """The policy's replies as one text; `cut` keeps of each what the tag protocols keep."""
    replies = [step.generation.text for step in trajectory.steps]
    return "\n".join(cut_behind(reply, ("search", "answer")) for reply in replies) if cut else "\n".join(replies)


def _ended(trajectory: Trajectory) -> bool:
    """Whether the last reply ended by itself."""
    return bool(trajectory.steps) and trajectory.steps[-1].generation.finish_reason == "stop"


def _searches_closed(step: Step) -> bool:
    """Whether each search tag of the reply has a closing one behind it and passages came back."""
    reply = step.generation.text
    last = reply.rfind("<search>")
    return last < 0 or (reply.rfind("</search>") > last and step.observation is not None)


def _contained(question: Question, texts: Iterable[str]) -> bool:
    """Whether a gold answer stands in one of the texts, both normalised; a gold that normalises to nothing does not."""
    golds = [gold for gold in map(normalize_answer, question.answers) if gold]
    return any(gold in text for text in map(normalize_answer, texts) for gold in golds)


def _parts(text: str) -> Iterable[tuple[str, bool]]:
    """The text cut at its tags: (part, whether it is a tag), in order."""
    position = 0
    for tag in _TAGS.finditer(text):
        yield text[position : tag.start()], False
        yield tag[0], True
        position = tag.end()
    yield text[position:], False


def _well_formed_call(reply: str) -> bool:
    """Whether think tags and tool calls of one reply are paired, and each call is JSON with name and arguments."""
    if reply.count("<think>") != reply.count("</think>") or reply.count("<tool_call>") != reply.count("</tool_call>"):
        return False
    return all(_is_call(block.content) for block in iter_blocks(reply, ("tool_call",)))


def _is_call(text: str) -> bool:
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(call, dict) and "name" in call and "arguments" in call
