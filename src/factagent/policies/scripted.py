"""The scripted expert: a policy that knows the gold triples, for cold start and tests, under every protocol.

It searches for the first gold triple that it can look for, and answers when it holds them all. Where the protocol has a
fact store or a memory, it writes gold triples there when an observation states them; elsewhere it holds what the
transcript shows. Its `noise` knob makes it choose badly, in ways that a policy chooses badly: a query about something
else, a fact that does not matter, an observation left unused, an answer too early. It reads the state and the
question's annotations, never the prompt; a policy cold-started from it has to learn to do the same from the prompt
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from factagent.errors import ConfigError
from factagent.policies.base import GenerationRequest, seed_of
from factagent.policies.scripted_replies import FORMATS, NOTHING, Reply, memory_text, write_reply
from factagent.policies.scripted_view import REMEMBERING, STORING, View
from factagent.protocols.memsearcher import updates_memory
from factagent.protocols.state import State
from factagent.types import Answer, Assert, Generation, Search, Triple

NEVER_SEARCHING = "rag"
"""The protocol whose only search is not the policy's."""


@dataclass(frozen=True)
class ScriptedExpert:
    """A `Policy`.

    Args:
        style: "full" or "terse", see `scripted_replies`. Both parse to the same actions.
        noise: probability in [0, 1] of a bad choice, drawn anew each round.
        passage_facts: the triples that each passage states, by passage id. Without it the expert recognises a gold
            triple by its subject and object in the text, and has no distracting facts to assert.
        seed: names the noise together with the request's key.
        haste: probability in [0, 1], in each round in which it holds a fact but not all that it needs, of answering
            with what the newest fact says. Above one half the most probable choice is to stop too early.
        protocol: name of the protocol under which it plays.

    Raises:
        ConfigError: the protocol is none that it can write for.
    """

    style: str = "full"
    noise: float = 0.0
    passage_facts: Mapping[str, Sequence[Triple]] = field(default_factory=dict)
    seed: int = 0
    haste: float = 0.0
    protocol: str = "factagent"

    def __post_init__(self) -> None:
        if self.protocol not in FORMATS:
            raise ConfigError(
                f"the scripted expert has no reply format for protocol '{self.protocol}'; it knows {', '.join(FORMATS)}"
            )

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """One reply a request."""
        return [Generation(self.reply_text(request)) for request in requests]

    def reply_text(self, request: GenerationRequest) -> str:
        """The reply as the policy would have to write it."""
        rng = Random(seed_of(("expert", self.seed, *request.key)))
        return write_reply(self.choose(request.state, rng), self.style, self.protocol)

    def choose(self, state: State, rng: Random) -> Reply:
        """The expert's choice in a state, or a noisy one."""
        view = View(state, self.passage_facts, self.protocol)
        if self.protocol == REMEMBERING and updates_memory(state):
            return _remember(view, self.noise, rng)
        return replace(self._act(view, rng), refined=_refined(view))

    def _act(self, view: View, rng: Random) -> Reply:
        if _must_answer(view):
            return Reply("done", Answer(_final_answer(view, rng)))
        if view.missing and view.held and rng.random() < self.haste:
            return Reply("done", Answer(_newest(view)))
        if rng.random() < self.noise:
            options = [option for make in _BLUNDERS if (option := make(view, rng)) is not None]
            if options:
                return rng.choice(options)
        return _best(view, rng)


def _must_answer(view: View) -> bool:
    """Whether another search could not be read any more, or is not the policy's to make."""
    state = view.state
    rounds_of_search = 2 if view.protocol == REMEMBERING else 1
    return view.protocol == NEVER_SEARCHING or state.round + rounds_of_search > state.max_rounds


def _best(view: View, rng: Random) -> Reply:
    found = view.found(view.missing) if view.protocol in STORING else ()
    if found:
        return Reply(_keep(found), Assert(found))
    targets = [view.query_for(index, rng) for index in view.missing]
    for query in (*(f"{entity} {relation}" for entity, relation in targets), *(entity for entity, _ in targets)):
        if query not in view.state.queries:
            return Reply(f"find {query}", Search(query))
    return Reply("done", Answer(_final_answer(view, rng)))


def _final_answer(view: View, rng: Random) -> str:
    """The gold answer where the evidence is complete or shows it; else a guess, so that no one learns to invent."""
    gold = view.question.answers[0]
    texts = [triple.text for triple in view.triples] + [f"{p.title} {p.text}" for p in view.shown]
    if not view.missing or any(gold in text for text in texts):
        return gold
    facts = view.triples or view.other_facts()
    return rng.choice(facts).object if facts else NOTHING


def _refined(view: View) -> tuple[Triple, ...] | None:
    """The gold facts of the observation that the last step brought."""
    steps = view.state.steps
    return view.found(range(len(view.golds))) if steps and steps[-1].observation else None


def _remember(view: View, noise: float, rng: Random) -> Reply:
    """The memory with what the observation adds to it.

    A noisy one forgets, overlooks, or keeps what does not matter.
    """
    found = view.found(view.missing)
    kept = tuple(dict.fromkeys((*view.triples, *found)))
    if rng.random() < noise:
        others = view.other_facts()
        more = tuple(dict.fromkeys((*view.triples, rng.choice(others)))) if others else ()
        options = [triples for triples in (tuple(view.triples), found, more) if triples != kept]
        kept = rng.choice(options) if options else kept
    return Reply(_keep(kept), Assert((), memory_text(kept)))


def _keep(triples: Sequence[Triple]) -> str:
    return "keep " + (", ".join(dict.fromkeys(triple.relation for triple in triples)) or NOTHING)


def _newest(view: View) -> str:
    """What the newest fact adds to the question: its object, or its subject where the question names the object."""
    triple = view.triples[-1]
    return triple.subject if triple.object in view.question.text else triple.object


def _blunder_search(view: View, rng: Random) -> Reply | None:
    """Ask about something else: another fact's entity or relation."""
    facts = view.other_facts() or list(view.question.evidences)
    if not facts:
        return None
    triple = rng.choice(facts)
    entity = rng.choice((triple.subject, triple.object))
    relation = rng.choice(facts).relation
    return Reply(f"find {entity} {relation}", Search(f"{entity} {relation}"))


def _blunder_assert(view: View, rng: Random) -> Reply | None:
    """Keep facts that do not matter."""
    facts = view.other_facts() if view.protocol in STORING else []
    if not facts:
        return None
    triples = tuple(dict.fromkeys(rng.sample(facts, k=min(len(facts), rng.choice((1, 1, 2))))))
    return Reply(_keep(triples), Assert(triples))


def _blunder_skip(view: View, rng: Random) -> Reply | None:
    """Leave a useful observation unused: search on for something that is still missing."""
    if not view.missing:
        return None
    entity, relation = view.query_for(rng.choice(view.missing), rng)
    return Reply(f"find {entity} {relation}", Search(f"{entity} {relation}"))


def _blunder_answer(view: View, rng: Random) -> Reply | None:
    """Answer too early, with something that is held or that the observation mentions."""
    facts = view.triples or view.other_facts()
    if not facts:
        return None
    triple = rng.choice(facts)
    return Reply("done", Answer(rng.choice((triple.subject, triple.object))))


_BLUNDERS: tuple[Callable[[View, Random], Reply | None], ...] = (
    _blunder_search,
    _blunder_assert,
    _blunder_skip,
    _blunder_answer,
)
