"""The scripted expert under every protocol: what it writes is read as what it chose, and it uses only what it saw."""

from __future__ import annotations

from random import Random

import pytest

from factagent.data.corpus import read_facts, read_passages
from factagent.data.dataset import read_questions
from factagent.data.world.build import build_world
from factagent.data.world.config import WorldConfig
from factagent.episode import Episode
from factagent.errors import ConfigError
from factagent.outcomes import outcome_reward
from factagent.policies.base import GenerationRequest, seed_of
from factagent.policies.scripted import ScriptedExpert
from factagent.policies.scripted_replies import STYLES, memory_text, memory_triples
from factagent.protocols import PROTOCOLS, build_protocol
from factagent.protocols.gigpo import is_valid_reply
from factagent.protocols.memsearcher import memory_of, updates_memory
from factagent.protocols.state import State
from factagent.protocols.tags import first_block
from factagent.retrieval.bm25 import BM25Index
from factagent.rewards import exact_match
from factagent.rollout import run_episodes
from factagent.types import Answer, Assert, Generation, Passage, Question, Search, Triple

NOISES = (0.0, 0.3, 1.0)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A world of 600 pages: 60 questions, facts, retriever."""
    directory = tmp_path_factory.mktemp("world") / "world"
    build_world(WorldConfig(entities=600, train=0, dev=60, test=0), directory)
    retriever = BM25Index.build(read_passages(directory / "corpus.jsonl"))
    return read_questions(directory / "qa.dev.jsonl"), read_facts(directory / "facts.jsonl"), retriever


class Checked:
    """The expert, with each of its replies read back under the protocol."""

    def __init__(self, expert, protocol):
        self.expert, self.protocol, self.replies = expert, protocol, []

    def generate(self, requests):
        return [Generation(self.check(request)) for request in requests]

    def check(self, request: GenerationRequest) -> str:
        chosen = self.expert.choose(request.state, Random(seed_of(("expert", self.expert.seed, *request.key)))).action
        text = self.expert.reply_text(request)
        assert self.protocol.parse(text, request.state) == chosen, text
        self.replies.append((request.state, chosen, text))
        return text


def play(world, name, style, noise=0.0, max_rounds=8, **knobs):
    questions, facts, retriever = world
    protocol = build_protocol(name, f"{name}-{style}")
    policy = Checked(ScriptedExpert(style, noise, facts, protocol=name, **knobs), protocol)
    episodes = [Episode(question, protocol, max_rounds=max_rounds) for question in questions]
    run_episodes(episodes, [("play", question.id) for question in questions], policy, retriever)
    return [(episode.state.question, episode.trajectory) for episode in episodes], policy.replies


def score(played) -> float:
    return sum(exact_match(t.answer or "", q.answers) for q, t in played) / len(played)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", sorted(PROTOCOLS))
def test_a_reply_is_read_as_the_action_that_was_chosen(world, name, style, noise):
    played, replies = play(world, name, style, noise)
    assert len(replies) >= len(played) == 60
    assert all(trajectory.answer is not None for _, trajectory in played)
    kinds = {type(action) for _, action, _ in replies}
    if name == "rag":
        assert kinds == {Answer}
    else:
        assert kinds >= {Search, Answer}
        assert (Assert in kinds) == (name in ("factagent", "react", "memsearcher"))
    for state, _, text in replies:
        assert name == "rag" or text.count("<think>") == text.count("</think>") == 1
        if name == "gigpo":
            assert is_valid_reply(text)
        if name == "autorefine":
            after_search = bool(state.steps) and state.steps[-1].observation is not None
            assert (first_block(text, ("refine",)) is not None) == after_search


@pytest.mark.parametrize("name", sorted(set(PROTOCOLS) - {"rag"}))
def test_without_noise_it_answers_nearly_every_question(world, name):
    played, _ = play(world, name, "terse", max_rounds=9)
    assert score(played) >= 0.95
    noisy, _ = play(world, name, "terse", 0.9, max_rounds=9)
    assert score(noisy) < score(played) - 0.3


def test_rag_answers_what_one_search_can_show_and_guesses_the_rest(world):
    played, _ = play(world, "rag", "terse", max_rounds=2)
    by_hops = {h: score([p for p in played if p[0].hops == h]) for h in (1, 2)}
    assert by_hops[1] >= 0.8 > by_hops[2]
    for question, trajectory in played:
        shown = " ".join(f"{p.title} {p.text}" for p in trajectory.steps[0].observation.passages)
        answer = trajectory.answer
        assert answer == "unknown" or answer in shown or answer in ("yes", "no"), question.id


@pytest.mark.parametrize("name", sorted(PROTOCOLS))
def test_styles_are_the_same_actions_and_the_last_round_is_an_answer(world, name):
    actions = [
        [[step.action for step in trajectory.steps] for _, trajectory in play(world, name, style, 0.5, 3)[0]]
        for style in STYLES
    ]
    assert actions[0] == actions[1]
    assert all(isinstance(row[-1], Answer) for row in actions[0])


def test_a_searcher_with_memory_never_starts_a_turn_that_it_cannot_read(world):
    for rounds in (1, 2, 4, 8):
        for _, trajectory in play(world, "memsearcher", "terse", 0.5, rounds)[0]:
            assert trajectory.answer is not None
            assert len(trajectory.steps) <= rounds


@pytest.mark.parametrize("noise", NOISES)
def test_a_memory_holds_only_what_was_shown_and_alone_decides(world, noise):
    _, replies = play(world, "memsearcher", "terse", noise)
    stated = world[1]
    checked = 0
    for state, action, _ in replies:
        if not updates_memory(state):
            continue
        shown = {t for p in state.observation.passages for t in stated.get(p.id, ())}
        assert set(memory_triples(action.summary)) <= shown | set(memory_triples(memory_of(state)))
        checked += bool(memory_triples(action.summary))
    assert checked > 20


PASSAGES = (Passage("p0", "The Trial", "The Trial is a novel by Kafka."),)
TRIAL = Question("q", "Who wrote The Trial?", ("Kafka",), evidences=(Triple("The Trial", "author", "Kafka"),))


def test_what_the_memory_forgot_is_searched_again():
    expert = ScriptedExpert("terse", protocol="memsearcher")
    protocol = build_protocol("memsearcher", "memsearcher-terse")
    episode = Episode(TRIAL, protocol)
    passage = next(iter(PASSAGES))
    for memory in ("- The Trial | author | Kafka", "unknown"):
        twin = episode.branch()
        twin.feed_generation(Generation(expert.reply_text(GenerationRequest(*_request(twin)))))
        twin.feed_passages([passage])
        twin.feed_generation(Generation(f"<memory>{memory}</memory>"))
        action = expert.choose(twin.state, Random(0)).action
        assert action == (Answer("Kafka") if "Kafka" in memory else Search("The Trial"))


def test_a_transcript_is_enough_where_nothing_can_be_kept():
    for name in ("search-r1", "gigpo", "research", "zerosearch", "autorefine"):
        expert = ScriptedExpert("full", protocol=name)
        episode = Episode(TRIAL, build_protocol(name, f"{name}-full"))
        episode.feed_generation(Generation(expert.reply_text(GenerationRequest(*_request(episode)))))
        episode.feed_passages(PASSAGES)
        assert expert.choose(episode.state, Random(0)).action == Answer("Kafka")


@pytest.mark.parametrize(
    "triples", [[], [Triple("a", "b", "c")], [Triple("a b", "is", "1 | 2"), Triple("d", "e", "f")]]
)
def test_memories_are_read_back(triples):
    assert memory_triples(memory_text(triples)) == [t for t in triples if " | " not in t.text]


def test_a_protocol_without_a_format_is_refused():
    with pytest.raises(ConfigError, match="no reply format for protocol 'mine'; it knows factagent"):
        ScriptedExpert(protocol="mine")


def _request(episode):
    need = episode.request
    return need.messages, need.state, need.prefix, ("k",)


def test_the_state_alone_decides():
    assert ScriptedExpert(protocol="rag").choose(State(TRIAL, 2), Random(0)).action == Answer("unknown")


@pytest.mark.parametrize(
    ("name", "reward"),
    [
        ("search-r1", "search-r1-format"),
        ("research", "research"),
        ("autorefine", "autorefine"),
        ("memsearcher", "memsearcher"),
    ],
)
@pytest.mark.parametrize("style", STYLES)
def test_its_replies_keep_the_format_that_the_method_rewards(world, name, reward, style):
    played, _ = play(world, name, style, max_rounds=9)
    right = [(question, trajectory) for question, trajectory in played if trajectory.answer in question.answers]
    assert len(right) >= 55
    assert {outcome_reward(reward, question, trajectory) for question, trajectory in right} == {1.0}
