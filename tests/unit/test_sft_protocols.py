"""Cold start under every protocol: an expert's text becomes the very tokens that the local policy would read."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from factagent.episode import FORCED  # noqa: E402
from factagent.policies.scripted import ScriptedExpert  # noqa: E402
from factagent.policies.transformers import SamplingSettings, TransformersPolicy  # noqa: E402
from factagent.protocols import PROTOCOLS, build_protocol  # noqa: E402
from factagent.rollout import RolloutSettings, sample_groups  # noqa: E402
from factagent.train.config import SftConfig  # noqa: E402
from factagent.train.sft import collect, keeps, sft_samples, with_tokens  # noqa: E402
from factagent.train.tiny import TinyConfig, build_model, build_tokenizer  # noqa: E402
from factagent.types import Answer, Assert, Passage, Question, Search, Step, Trajectory, Triple  # noqa: E402

WROTE, BORN = Triple("The Trial", "author", "Kafka"), Triple("Kafka", "place of birth", "Prague")
QUESTIONS = [
    Question("q0", "Where was the author of The Trial born?", ("Prague",), evidences=(WROTE, BORN)),
    Question("q1", "Who wrote The Trial ?", ("Kafka",), evidences=(WROTE,)),
]
ROUNDS = 6
SETTINGS = RolloutSettings(group_size=1, max_rounds=ROUNDS, record_messages=True)
CASES = [(name, style) for name in sorted(PROTOCOLS) for style in ("full", "terse")]


class Shelf:
    passages = (
        Passage("p0", "The Trial", "The Trial is a novel by Kafka. </information><|end|>"),
        Passage("p1", "Kafka", "Kafka came from Prague." + " and more" * 200),
    )

    def search(self, queries, top_k):
        return [self.passages[:top_k] if "Trial" in query else self.passages[1:] for query in queries]


@pytest.fixture(scope="module")
def policy():
    text = "Where was the author of The Trial born place birth Kafka Prague and more wrote Who novel came from"
    words = sorted(set(re.findall(r"\w+", text)))
    tokenizer = build_tokenizer(words)
    size = TinyConfig(hidden_size=16, layers=1, heads=2, intermediate_size=16, max_positions=32768)
    return TransformersPolicy(build_model(size, tokenizer), tokenizer, SamplingSettings(max_new_tokens=1))


class Dictated:
    """The local policy's own prompts, with the expert's replies in the place of what it would sample."""

    def __init__(self, policy, expert):
        self.policy, self.expert = policy, expert

    def generate(self, requests):
        read = self.policy.generate(requests)
        written = self.expert.generate(requests)
        return [self._join(*parts) for parts in zip(requests, read, written, strict=True)]

    def _join(self, request, read, written):
        reply = self.policy.codec.encode_replies([written.text], request.stop)[0]
        return replace(written, prompt_ids=read.prompt_ids, response_ids=reply, logprobs=(0.0,) * len(reply))


def groups_of(name, style, policy, *, dictated):
    protocol = build_protocol(name, f"{name}-{style}")
    expert = ScriptedExpert(style, 0.2, seed=3, protocol=name)
    writer = Dictated(policy, expert) if dictated else expert
    return protocol, sample_groups(QUESTIONS, protocol, writer, Shelf(), SETTINGS, ("k",))


@pytest.mark.parametrize(("name", "style"), CASES)
def test_the_tokens_are_those_that_the_local_policy_would_read(name, style, policy):
    protocol, plain = groups_of(name, style, policy, dictated=False)
    _, expected = groups_of(name, style, policy, dictated=True)
    encoded = with_tokens(plain, protocol, policy.codec, ROUNDS)
    assert encoded == [list(group.trajectories) for group in expected]
    assert sum(step.generation.finish_reason == FORCED for row in encoded for t in row for step in t.steps) == (
        2 if name == "rag" else 0
    )
    # What a policy sampled is taken as it is.
    assert with_tokens(expected, protocol, policy.codec, ROUNDS) == encoded


@pytest.mark.parametrize(("name", "style"), CASES)
def test_the_samples_train_every_reply_and_nothing_else(name, style, policy):
    protocol, groups = groups_of(name, style, policy, dictated=False)
    samples = sft_samples(groups, protocol, policy.codec, ROUNDS)
    steps = [step for group in groups for t in group.trajectories for step in t.steps]
    written = [step.generation.text for step in steps if step.generation.finish_reason != FORCED]
    replies = []
    for sample in samples:
        for index in range(int(sample.step_ids.max()) + 1):
            replies.append(policy.codec.decode(sample.response_ids[sample.step_ids == index].tolist()))
    assert replies == written
    assert len(samples) == (len(groups) if protocol.context == "append" else len(written))
    for sample in samples:
        ids = sample.response_ids.tolist()
        closes = policy.codec.decode(ids).endswith(protocol.stop) if protocol.stop else False
        assert (ids[-1] == policy.codec.end_id) is not closes


def test_an_assert_is_asked_of_protocols_that_have_one():
    steps = (Step(Search("a")), Step(Answer("Prague")))
    kept = replace(Trajectory(steps), steps=(steps[0], Step(Assert((BORN,))), steps[1]))
    for name in PROTOCOLS:
        protocol = build_protocol(name, f"{name}-terse")
        assert keeps(QUESTIONS[0], Trajectory(steps), "correct", asserts=protocol.asserts) is (
            name not in ("factagent", "react")
        )
        assert keeps(QUESTIONS[0], kept, "correct", asserts=protocol.asserts)


@pytest.mark.parametrize("name", sorted(PROTOCOLS))
def test_the_expert_gives_as_many_trajectories_as_were_asked_for(name):
    protocol = build_protocol(name, f"{name}-terse")
    expert = ScriptedExpert("terse", protocol=name)
    config = SftConfig(source="expert", trajectories=5)
    groups = list(collect(QUESTIONS, protocol, expert, Shelf(), SETTINGS, config, 0))
    assert sum(len(group.trajectories) for group in groups) == 5
