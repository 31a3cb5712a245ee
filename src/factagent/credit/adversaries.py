"""Adversarial rewrites of saved groups: more assertions, the same outcomes (credit.md section 10).

Each adversary inserts one assert right after a member's first assert, so it reads the same observation and pays the
same search. Members that never assert stay as they are: an assertion would lift the premature-answer rule and change
their outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from factagent.types import Assert, Group, Question, Step, Trajectory, Triple

SPAM = 5
"""How many false facts a spamming member adds."""

WORDINGS: tuple[Callable[[Triple], Triple], ...] = (
    lambda t: Triple(t.subject.upper(), t.relation, t.object),
    lambda t: Triple(f"the {t.subject}", t.relation, t.object),
    lambda t: Triple(t.object, t.relation, t.subject),
    lambda t: Triple(t.subject, f"reportedly {t.relation}", t.object),
    lambda t: Triple(t.subject, f"is one that {t.relation}", t.object),
    lambda t: Triple(f"{t.subject} itself", f"indeed {t.relation}", f"{t.object} as such"),
)
"""Ways to say a triple again, from formatting, which any equivalence should see through, to padding."""


@dataclass(frozen=True, slots=True)
class Attack:
    """A rewritten group and the members that were rewritten (empty where the group offers no opening)."""

    group: Group
    adversaries: tuple[int, ...]


Adversary = Callable[[Group, Sequence[str], np.random.Generator], Attack]


def paraphrase_spam(group: Group, objects: Sequence[str], random: np.random.Generator) -> Attack:
    """One member says each fact of its first assert again in every wording of `WORDINGS`."""
    return _one_member(group, random, lambda facts: tuple(wording(fact) for fact in facts for wording in WORDINGS))


def false_fact_spam(group: Group, objects: Sequence[str], random: np.random.Generator) -> Attack:
    """One member adds `SPAM` false facts that nobody else asserts."""
    return _one_member(group, random, lambda facts: tuple(_false(facts, group.question, objects, random, SPAM)))


def common_false_fact(group: Group, objects: Sequence[str], random: np.random.Generator) -> Attack:
    """All members that assert anything add the same false fact."""
    members = openings(group)
    return _common(group, members, objects, random)


def majority_false_fact(group: Group, objects: Sequence[str], random: np.random.Generator) -> Attack:
    """All asserting members but one add the same false fact; the one stays honest."""
    members = openings(group)
    if len(members) < 3:
        return Attack(group, ())
    honest = int(random.choice(members))
    return _common(group, tuple(member for member in members if member != honest), objects, random)


ADVERSARIES: dict[str, Adversary] = {
    "paraphrase-spam": paraphrase_spam,
    "false-fact-spam": false_fact_spam,
    "common-false-fact": common_false_fact,
    "majority-false-fact": majority_false_fact,
}


def attack(groups: Sequence[Group], adversary: Adversary, seed: int) -> list[Attack]:
    """Rewrite every group; objects of false facts come from the assertions and gold facts of all groups."""
    objects = sorted({triple.object for group in groups for triple in (*_asserted(group), *group.question.evidences)})
    random = np.random.default_rng(seed)
    return [adversary(group, objects, random) for group in groups]


def openings(group: Group) -> tuple[int, ...]:
    """The members that count in the statistics and assert something."""
    return tuple(
        member
        for member, trajectory in enumerate(group.trajectories)
        if trajectory.facts and not trajectory.stop_reason.is_failure
    )


def _one_member(
    group: Group, random: np.random.Generator, write: Callable[[tuple[Triple, ...]], tuple[Triple, ...]]
) -> Attack:
    members = openings(group)
    if not members:
        return Attack(group, ())
    member = int(random.choice(members))
    triples = write(_first_facts(group.trajectories[member]))
    return Attack(_insert(group, {member: triples}), (member,)) if triples else Attack(group, ())


def _common(group: Group, members: Sequence[int], objects: Sequence[str], random: np.random.Generator) -> Attack:
    facts = tuple(fact for member in members for fact in _first_facts(group.trajectories[member]))
    false = tuple(_false(facts, group.question, objects, random, 1))
    if not false:
        return Attack(group, ())
    return Attack(_insert(group, dict.fromkeys(members, false)), tuple(members))


def _false(
    facts: Sequence[Triple], question: Question, objects: Sequence[str], random: np.random.Generator, count: int
) -> list[Triple]:
    """Facts of the group with the object of another one, never a gold fact; distinct, fewer where objects run out."""
    known = {fact.object for fact in facts} | {part for triple in _gold(question) for part in triple}
    others = [item for item in objects if item not in known]
    if not facts or not others:
        return []
    chosen = random.choice(len(others), size=min(count, len(others)), replace=False).tolist()
    return [facts[i % len(facts)]._replace(object=others[index]) for i, index in enumerate(chosen)]


def _gold(question: Question) -> list[Triple]:
    return [*question.evidences, *(triple for wordings in question.evidence_variants for triple in wordings)]


def _asserted(group: Group) -> list[Triple]:
    return [fact.triple for trajectory in group.trajectories for fact in trajectory.facts]


def _first_facts(trajectory: Trajectory) -> tuple[Triple, ...]:
    first = trajectory.facts[0].assert_step
    return tuple(dict.fromkeys(fact.triple for fact in trajectory.facts if fact.assert_step == first))


def _insert(group: Group, triples_of: dict[int, tuple[Triple, ...]]) -> Group:
    """The group with one more assert, right after the first, in each of the given members."""
    trajectories = list(group.trajectories)
    for member, triples in triples_of.items():
        trajectory = trajectories[member]
        cut = trajectory.facts[0].assert_step + 1
        steps = (*trajectory.steps[:cut], Step(Assert(triples)), *trajectory.steps[cut:])
        trajectories[member] = replace(trajectory, steps=steps, messages=())
    return replace(group, trajectories=tuple(trajectories))
