"""The scripted expert: a policy that knows the gold triples, for cold start and tests.

It searches for the first gold triple that it can look for, asserts gold triples when an observation states them, and
answers when it holds them all. Its `noise` knob makes it choose badly, in ways that a policy chooses badly: a query
about something else, a fact that does not matter, an observation left unused, an answer too early. It reads the state
and the question's annotations, never the prompt; a policy cold-started from it has to learn to do the same from the
prompt alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from factagent.policies.base import GenerationRequest, seed_of
from factagent.protocols.actions import render_action
from factagent.protocols.fact_store import fact_key
from factagent.protocols.state import State
from factagent.types import Action, Answer, Assert, Generation, Passage, Question, Search, Triple

STYLES = ("full", "terse")


@dataclass(frozen=True)
class Reply:
    """A thought and the action that follows from it."""

    thought: str
    action: Action


@dataclass(frozen=True)
class ScriptedExpert:
    """A `Policy`.

    Args:
        style: "full" writes a thought and fenced JSON; "terse" writes bare JSON with a blank before each string,
            which a tokenizer with words as tokens prefers. Both parse to the same actions.
        noise: probability in [0, 1] of a bad choice, drawn anew each round.
        passage_facts: the triples that each passage states, by passage id. Without it the expert recognises a gold
            triple by its subject and object in the text, and has no distracting facts to assert.
        seed: names the noise together with the request's key.
    """

    style: str = "full"
    noise: float = 0.0
    passage_facts: Mapping[str, Sequence[Triple]] = field(default_factory=dict)
    seed: int = 0

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """One reply a request."""
        return [Generation(self.reply_text(request)) for request in requests]

    def reply_text(self, request: GenerationRequest) -> str:
        """The reply as the policy would have to write it."""
        rng = Random(seed_of(("expert", self.seed, *request.key)))  # noqa: S311 (not for secrets)
        reply = self.choose(request.state, rng)
        return write_reply(reply, self.style)

    def choose(self, state: State, rng: Random) -> Reply:
        """The expert's choice in a state, or a noisy one."""
        view = _View(state, self.passage_facts)
        if rng.random() < self.noise:
            options = [option for make in _BLUNDERS if (option := make(view, rng)) is not None]
            if options:
                return rng.choice(options)
        return _best(view, rng)


def write_reply(reply: Reply, style: str) -> str:
    """Thought and action as text that the strict parser accepts."""
    if style == "terse":
        return f"<think> {reply.thought}</think>{render_action(_spaced(reply.action))}"
    return f"<think>\n{reply.thought}\n</think>\n```json\n{render_action(reply.action)}\n```"


def _spaced(action: Action) -> Action:
    match action:
        case Search(query):
            return Search(f" {query}")
        case Assert(triples, summary):
            return Assert(tuple(Triple(f" {s}", f" {r}", f" {o}") for s, r, o in triples), summary)
        case Answer(response):
            return Answer(f" {response}")
    return action


class _View:
    """What the expert sees: the state with the gold annotations laid over it."""

    def __init__(self, state: State, passage_facts: Mapping[str, Sequence[Triple]]) -> None:
        self.state = state
        self.question: Question = state.question
        self.passage_facts = passage_facts
        self.passages: tuple[Passage, ...] = state.observation.passages if state.observation else ()
        self.held = {fact_key(fact.triple) for fact in state.store.facts}
        self.golds = [_wordings(self.question, i) for i in range(len(self.question.evidences))]
        self.missing = [i for i, gold in enumerate(self.golds) if not self.held & gold.keys()]

    def stated(self, gold: Mapping[tuple[str, ...], Triple]) -> Triple | None:
        """A gold triple as the observation words it, or None where the observation does not state it."""
        for passage in self.passages:
            if passage.id in self.passage_facts:
                for triple in self.passage_facts[passage.id]:
                    if fact_key(triple) in gold:
                        return triple
                continue
            text = f"{passage.title} {passage.text}".casefold()
            canonical = next(iter(gold.values()))
            if canonical.subject.casefold() in text and canonical.object.casefold() in text:
                return canonical
        return None

    def other_facts(self) -> list[Triple]:
        """What the observation states besides the gold triples and what the store holds."""
        known = set(self.held).union(*(gold.keys() for gold in self.golds))
        facts = [triple for passage in self.passages for triple in self.passage_facts.get(passage.id, ())]
        return [triple for triple in facts if fact_key(triple) not in known]

    def query_for(self, index: int) -> tuple[str, str]:
        """(entity, relation) to ask for: the side of the gold triple that the policy can know by now."""
        triple = self.question.evidences[index]
        known = self.question.text + "\n" + "\n".join(fact.triple.text for fact in self.state.store.facts)
        if triple.subject not in known and triple.object in known:
            inverse = next((t for t in self.golds[index].values() if t.subject == triple.object), None)
            return triple.object, inverse.relation if inverse else triple.relation
        return triple.subject, triple.relation


def _wordings(question: Question, index: int) -> dict[tuple[str, ...], Triple]:
    """Every wording of one gold triple, by key; the canonical one first."""
    variants = question.evidence_variants[index] if index < len(question.evidence_variants) else ()
    return {fact_key(triple): triple for triple in (question.evidences[index], *variants)}


def _best(view: _View, rng: Random) -> Reply:
    found = {i: triple for i in view.missing if (triple := view.stated(view.golds[i])) is not None}
    if found:
        thought = "keep " + ", ".join(dict.fromkeys(triple.relation for triple in found.values()))
        return Reply(thought, Assert(tuple(dict.fromkeys(found.values()))))
    for index in view.missing:
        reply = _search(view, index)
        if isinstance(reply.action, Search) and reply.action.query not in view.state.queries:
            return reply
    for index in view.missing:
        entity, _ = view.query_for(index)
        if entity not in view.state.queries:
            return Reply(f"find {entity}", Search(entity))
    return Reply("done", Answer(_final_answer(view, rng)))


def _final_answer(view: _View, rng: Random) -> str:
    """The gold answer where the evidence is complete or shows it; else a guess, so that no one learns to invent."""
    gold = view.question.answers[0]
    texts = [fact.triple.text for fact in view.state.store.facts] + [f"{p.title} {p.text}" for p in view.passages]
    if not view.missing or any(gold in text for text in texts):
        return gold
    facts = [fact.triple for fact in view.state.store.facts] or view.other_facts()
    return rng.choice(facts).object if facts else "unknown"


def _search(view: _View, index: int) -> Reply:
    entity, relation = view.query_for(index)
    return Reply(f"find {entity} {relation}", Search(f"{entity} {relation}"))


def _blunder_search(view: _View, rng: Random) -> Reply | None:
    """Ask about something else: another fact's entity or relation."""
    facts = view.other_facts() or list(view.question.evidences)
    if not facts:
        return None
    triple = rng.choice(facts)
    entity = rng.choice((triple.subject, triple.object))
    relation = rng.choice(facts).relation
    return Reply(f"find {entity} {relation}", Search(f"{entity} {relation}"))


def _blunder_assert(view: _View, rng: Random) -> Reply | None:
    """Keep facts that do not matter."""
    facts = view.other_facts()
    if not facts:
        return None
    triples = tuple(dict.fromkeys(rng.sample(facts, k=min(len(facts), rng.choice((1, 1, 2))))))
    return Reply("keep " + ", ".join(dict.fromkeys(t.relation for t in triples)), Assert(triples))


def _blunder_skip(view: _View, rng: Random) -> Reply | None:
    """Leave a useful observation unused: search on for something that is still missing."""
    if not view.missing:
        return None
    return _search(view, rng.choice(view.missing))


def _blunder_answer(view: _View, rng: Random) -> Reply | None:
    """Answer too early, with something that the store or the observation mentions."""
    facts = [fact.triple for fact in view.state.store.facts] or view.other_facts()
    if not facts:
        return None
    triple = rng.choice(facts)
    return Reply("done", Answer(rng.choice((triple.subject, triple.object))))


_BLUNDERS: tuple[Callable[[_View, Random], Reply | None], ...] = (
    _blunder_search,
    _blunder_assert,
    _blunder_skip,
    _blunder_answer,
)
