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
        haste: probability in [0, 1], in each round in which it holds a fact but not all that it needs, of answering
            with what the newest fact says. Above one half the most probable choice is to stop too early.
    """

    style: str = "full"
    noise: float = 0.0
    passage_facts: Mapping[str, Sequence[Triple]] = field(default_factory=dict)
    seed: int = 0
    haste: float = 0.0

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """One reply a request."""
        return [Generation(self.reply_text(request)) for request in requests]

    def reply_text(self, request: GenerationRequest) -> str:
        """The reply as the policy would have to write it."""
        rng = Random(seed_of(("expert", self.seed, *request.key)))
        reply = self.choose(request.state, rng)
        return write_reply(reply, self.style)

    def choose(self, state: State, rng: Random) -> Reply:
        """The expert's choice in a state, or a noisy one."""
        view = _View(state, self.passage_facts)
        if state.round == state.max_rounds:
            return Reply("done", Answer(_final_answer(view, rng)))
        if view.missing and view.held and rng.random() < self.haste:
            return Reply("done", Answer(_newest(view)))
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

    def stated(self, gold: Mapping[tuple[str, ...], Triple]) -> list[Triple]:
        """A gold triple as the observation words it, with what the same passage says of its subject in the same words.

        These siblings are what a reader who does not know the answer would keep too (the whole cast of a film, not
        only the actor who turns out to matter). Empty where the observation does not state the gold triple.
        """
        for passage in self.passages:
            if passage.id in self.passage_facts:
                facts = self.passage_facts[passage.id]
                for found in facts:
                    if fact_key(found) in gold:
                        return [t for t in facts if t.subject == found.subject and t.relation == found.relation]
                continue
            text = f"{passage.title} {passage.text}".casefold()
            canonical = next(iter(gold.values()))
            if canonical.subject.casefold() in text and canonical.object.casefold() in text:
                return [canonical]
        return []

    def other_facts(self) -> list[Triple]:
        """What the observation states besides the gold triples and what the store holds."""
        known = set(self.held).union(*(gold.keys() for gold in self.golds))
        facts = [triple for passage in self.passages for triple in self.passage_facts.get(passage.id, ())]
        return [triple for triple in facts if fact_key(triple) not in known]

    def query_for(self, index: int, rng: Random) -> tuple[str, str]:
        """(entity, relation) to ask for: the side of the gold triple that the policy can know by now.

        Where it can know both sides, either is drawn: which of several candidates is the right one, it cannot know.
        """
        triple = self.question.evidences[index]
        known = self.question.text + "\n" + "\n".join(fact.triple.text for fact in self.state.store.facts)
        from_object = triple.object in known and (triple.subject not in known or rng.random() < 0.5)
        if not from_object:
            return triple.subject, triple.relation
        inverse = next((t for t in self.golds[index].values() if t.subject == triple.object), None)
        return triple.object, inverse.relation if inverse else triple.relation


def _wordings(question: Question, index: int) -> dict[tuple[str, ...], Triple]:
    """Every wording of one gold triple, by key; the canonical one first."""
    variants = question.evidence_variants[index] if index < len(question.evidence_variants) else ()
    return {fact_key(triple): triple for triple in (question.evidences[index], *variants)}


def _best(view: _View, rng: Random) -> Reply:
    found = tuple(dict.fromkeys(triple for i in view.missing for triple in view.stated(view.golds[i])))
    if found:
        return Reply(_keep(found), Assert(found))
    targets = [view.query_for(index, rng) for index in view.missing]
    for query in (*(f"{entity} {relation}" for entity, relation in targets), *(entity for entity, _ in targets)):
        if query not in view.state.queries:
            return Reply(f"find {query}", Search(query))
    return Reply("done", Answer(_final_answer(view, rng)))


def _final_answer(view: _View, rng: Random) -> str:
    """The gold answer where the evidence is complete or shows it; else a guess, so that no one learns to invent."""
    gold = view.question.answers[0]
    texts = [fact.triple.text for fact in view.state.store.facts] + [f"{p.title} {p.text}" for p in view.passages]
    if not view.missing or any(gold in text for text in texts):
        return gold
    facts = [fact.triple for fact in view.state.store.facts] or view.other_facts()
    return rng.choice(facts).object if facts else "unknown"


def _keep(triples: Sequence[Triple]) -> str:
    return "keep " + ", ".join(dict.fromkeys(triple.relation for triple in triples))


def _newest(view: _View) -> str:
    """What the newest fact adds to the question: its object, or its subject where the question names the object."""
    triple = view.state.store.facts[-1].triple
    return triple.subject if triple.object in view.question.text else triple.object


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
    return Reply(_keep(triples), Assert(triples))


def _blunder_skip(view: _View, rng: Random) -> Reply | None:
    """Leave a useful observation unused: search on for something that is still missing."""
    if not view.missing:
        return None
    entity, relation = view.query_for(rng.choice(view.missing), rng)
    return Reply(f"find {entity} {relation}", Search(f"{entity} {relation}"))


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
