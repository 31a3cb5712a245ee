"""How good is the credit of steps? Advantages against gold on saved groups, without training (credit.md section 10).

For each credit option, of whatever rule: the area under the ROC curve of step advantages, asserts that hold a gold
triple against the other asserts, and searches that returned a gold passage against the other searches; by kind of
group, on the groups as they are and as adversaries rewrote them; and what each adversary gained. Groups of a protocol
without asserts are judged by their searches alone, and no adversary has an opening in them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from factagent.credit import ranking
from factagent.credit.adversaries import ADVERSARIES, Attack, attack, openings
from factagent.credit.assign import GroupCredit, outcome_and_success
from factagent.credit.config import CreditConfig
from factagent.credit.entities import normalise_text
from factagent.credit.measured import Measured
from factagent.credit.rule_choice import AnyRule, assign
from factagent.errors import DataError, UsageError
from factagent.types import Assert, Group, Question, Search, Step, Triple

if TYPE_CHECKING:
    from factagent.credit.encoders import Encoder

Row = dict[str, object]
Floats = NDArray[np.float64]

Measure = Callable[[Sequence[Group], AnyRule], Measured | None]

KINDS = ("all-fail", "mixed", "all-pass", "all")


@dataclass(frozen=True, slots=True)
class Gold:
    """What counts as gold for a question: normalised triples, in every listed wording, and titles of passages."""

    triples: frozenset[tuple[str, ...]]
    titles: frozenset[str]

    def is_gold(self, step: Step) -> bool:
        """Whether an assert holds a gold triple, or a search returned a gold passage."""
        if isinstance(step.action, Assert):
            return any(normal(triple) in self.triples for triple in step.action.triples)
        passages = step.observation.passages if step.observation else ()
        return any(normalise_text(passage.title) in self.titles for passage in passages)


@dataclass(frozen=True, slots=True)
class _Labels:
    """The judged steps of some groups as aligned arrays: where each stands, what it is, whether it is gold."""

    place_N: list[tuple[int, int, int]]
    group_N: NDArray[np.int64]
    is_assert_N: NDArray[np.bool_]
    gold_N: NDArray[np.bool_]


def normal(triple: Triple) -> tuple[str, ...]:
    """A triple with its parts normalised, orientation kept."""
    return tuple(normalise_text(part) for part in triple)


def gold_of(question: Question) -> Gold:
    """Gold by the data set: `evidences` with their `evidence_variants`, and `supporting_titles`."""
    triples = [*question.evidences, *(triple for wordings in question.evidence_variants for triple in wordings)]
    return Gold(frozenset(map(normal, triples)), frozenset(map(normalise_text, question.supporting_titles)))


def no_measurement(groups: Sequence[Group], config: AnyRule) -> Measured | None:
    """What rules get that need no measurement."""
    return None


def quality(
    groups: Sequence[Group],
    configs: Mapping[str, AnyRule],
    encoder: Encoder,
    *,
    measure: Measure = no_measurement,
    gold: Callable[[Question], Gold] = gold_of,
    adversaries: Sequence[str] = tuple(ADVERSARIES),
    seed: int = 0,
    resamples: int = 1000,
) -> Iterator[Row]:
    """Yield one row per table cell; rows with `"table": "auc"` and, for adversaries, `"table": "gain"`.

    An "auc" row: `groups` ("original" or the adversary), `credit`, `steps` ("assert" or "search"), `kind`, `positives`,
    `negatives`, `auc` with `low` and `high` (pairs pooled over groups), `auc_within` with `within_low` and
    `within_high` (pairs inside a group). A "gain" row: `gain`, the mean change of what the adversary's steps earn
    beside the outcome advantage, against its honest self, with `low` and `high`, and `margin` over the members left
    honest.
    Intervals are 95 %, by bootstrap over questions; what cannot be estimated is None. Rules that need a `measure` judge
    only the groups as they are: what an adversary wrote was never sampled.

    Raises:
        DataError: there is no group, or no question has gold.
        UsageError: a rule needs a measurement that `measure` does not give.
    """
    if not any(gold(group.question).triples or gold(group.question).titles for group in groups):
        raise DataError("no saved question has gold evidences or supporting titles to judge steps by")
    table = _Table(groups, gold, seed, resamples)
    measured = {name: _measured(groups, config, measure) for name, config in configs.items()}
    original = {name: assign(groups, config, encoder, measured[name]) for name, config in configs.items()}
    labels = table.label(groups)
    for name, credits in original.items():
        yield from table.auc_rows("original", name, labels, credits)
    attacked = {name: config for name, config in configs.items() if config.needs is None}
    for adversary in adversaries if table.asserts else ():
        attacks = attack(groups, ADVERSARIES[adversary], seed)
        rewritten = [item.group for item in attacks]
        labels = table.label(rewritten)
        for name, config in attacked.items():
            credits = assign(rewritten, config, encoder)
            yield from table.auc_rows(adversary, name, labels, credits)
            yield from table.gain_rows(adversary, name, attacks, original[name], credits)


def _measured(groups: Sequence[Group], config: AnyRule, measure: Measure) -> Measured | None:
    measured = measure(groups, config)
    if config.needs is not None and measured is None:
        raise UsageError(f"rule '{config.rule}' needs measurements ({config.needs}); give `measure`")
    return measured


def cells(configs: Mapping[str, AnyRule], adversaries: Sequence[str], *, asserts: bool = True) -> int:
    """How many rows `quality` will yield for groups with (or without) asserts."""
    if not asserts:
        return len(configs) * len(KINDS)
    attacked = sum(config.needs is None for config in configs.values())
    return len(KINDS) * (2 * len(configs) + 3 * attacked * len(adversaries))


def has_asserts(groups: Sequence[Group]) -> bool:
    """Whether any member asserted a fact; in the groups of a protocol without a fact store none did."""
    return any(trajectory.facts for group in groups for trajectory in group.trajectories)


class _Table:
    """What all cells share: the questions, the kinds of the groups, and one set of bootstrap weights."""

    def __init__(self, groups: Sequence[Group], gold: Callable[[Question], Gold], seed: int, resamples: int) -> None:
        numbers: dict[str, int] = {}
        questions = [numbers.setdefault(group.question.id, len(numbers)) for group in groups]
        self.question_G = np.array(questions, dtype=np.int64)
        self.asserts = has_asserts(groups)
        self.kind_G = np.array([kind_of(group, needs_facts=self.asserts) for group in groups])
        self.questions = len(numbers)
        self.weight_RQ = ranking.bootstrap_weights(self.questions, resamples, seed)
        self.gold = gold

    def label(self, groups: Sequence[Group]) -> _Labels:
        """Judge every assert and search of the members that count."""
        places: list[tuple[int, int, int]] = []
        judged: list[tuple[bool, bool]] = []
        for g, group in enumerate(groups):
            gold = self.gold(group.question)
            for m, trajectory in enumerate(group.trajectories):
                for s, step in enumerate(trajectory.steps if not trajectory.stop_reason.is_failure else ()):
                    if isinstance(step.action, Assert | Search):
                        places.append((g, m, s))
                        judged.append((isinstance(step.action, Assert), gold.is_gold(step)))
        flags = np.array(judged, dtype=bool).reshape(-1, 2)
        return _Labels(places, np.array([g for g, _, _ in places], dtype=np.int64), flags[:, 0], flags[:, 1])

    def auc_rows(self, source: str, name: str, labels: _Labels, credits: Sequence[GroupCredit]) -> Iterator[Row]:
        """The cells of one credit option on one set of groups."""
        advantages = [credits[g].trajectories[m].steps[s].advantage for g, m, s in labels.place_N]
        score_N = np.array(advantages, dtype=np.float64)
        judged = {"assert": labels.is_assert_N} if self.asserts else {}
        for steps, of_steps in (judged | {"search": ~labels.is_assert_N}).items():
            for kind in KINDS:
                chosen = of_steps & self._of_kind(kind)[labels.group_N]
                group_N, gold_N = labels.group_N[chosen], labels.gold_N[chosen]
                question_N = self.question_G[group_N]
                wins = ranking.pair_wins(score_N[chosen], gold_N, question_N, group_N, self.questions)
                pooled = ranking.pooled_auc(wins, self.weight_RQ)
                within = ranking.within_auc(wins, self.weight_RQ)
                yield {
                    "table": "auc", "groups": source, "credit": name, "steps": steps, "kind": kind,
                    "positives": int(gold_N.sum()), "negatives": int((~gold_N).sum()),
                    **_estimate(pooled, "auc", "low", "high"),
                    **_estimate(within, "auc_within", "within_low", "within_high"),
                }  # fmt: skip

    def gain_rows(
        self, adversary: str, name: str, attacks: Sequence[Attack], before: Sequence[GroupCredit],
        after: Sequence[GroupCredit],
    ) -> Iterator[Row]:  # fmt: skip
        """What the adversary gained under one credit option."""
        attacked_G = np.array([bool(item.adversaries) for item in attacks])
        gain_G, margin_G = np.zeros(len(attacks)), np.full(len(attacks), np.nan)
        for g, item in enumerate(attacks):
            liars = item.adversaries
            if not liars:
                continue
            honest = [member for member in openings(item.group) if member not in liars]
            paid = _beside_outcome(after[g], liars)
            gain_G[g] = paid - _beside_outcome(before[g], liars)
            margin_G[g] = paid - _beside_outcome(after[g], honest) if honest else np.nan
        for kind in KINDS:
            chosen = attacked_G & self._of_kind(kind)
            gain = self._mean(gain_G, chosen)
            margin = self._mean(np.nan_to_num(margin_G), chosen & ~np.isnan(margin_G))
            yield {
                "table": "gain", "groups": adversary, "credit": name, "kind": kind, "attacked": int(chosen.sum()),
                **_estimate(gain, "gain", "low", "high"), "margin": _number(margin.value),
            }  # fmt: skip

    def _of_kind(self, kind: str) -> NDArray[np.bool_]:
        return np.ones(len(self.kind_G), dtype=bool) if kind == "all" else self.kind_G == kind

    def _mean(self, value_G: Floats, chosen_G: NDArray[np.bool_]) -> ranking.Estimate:
        value_Q, count_Q = np.zeros(self.questions), np.zeros(self.questions)
        np.add.at(value_Q, self.question_G[chosen_G], value_G[chosen_G])
        np.add.at(count_Q, self.question_G[chosen_G], 1.0)
        return ranking.mean_of(value_Q, count_Q, self.weight_RQ)


def kind_of(group: Group, *, needs_facts: bool = True) -> str:
    """Whether all counted members succeed by exact match, none, or some; a group without any counts as "all-fail"."""
    exact = CreditConfig(needs_facts=needs_facts)
    counted = [trajectory for trajectory in group.trajectories if not trajectory.stop_reason.is_failure]
    passed = sum(outcome_and_success(group.question, trajectory, exact)[1] for trajectory in counted)
    if passed == 0:
        return "all-fail"
    return "all-pass" if passed == len(counted) else "mixed"


def _beside_outcome(credit: GroupCredit, members: Sequence[int]) -> float:
    """Mean over members of what their steps earn beside the outcome advantage, summed."""
    chosen = [credit.trajectories[member] for member in members]
    return float(np.mean([sum(step.advantage - one.outcome_advantage for step in one.steps) for one in chosen]))


def _estimate(estimate: ranking.Estimate, value: str, low: str, high: str) -> dict[str, float | None]:
    return {value: _number(estimate.value), low: _number(estimate.low), high: _number(estimate.high)}


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)
