"""Cold start: what rejection sampling keeps, the samples made of it, and that training on them teaches."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from factagent.policies.chat import ChatCodec  # noqa: E402
from factagent.policies.scripted import ScriptedExpert  # noqa: E402
from factagent.protocols import build_protocol  # noqa: E402
from factagent.rollout import RolloutSettings  # noqa: E402
from factagent.train.config import SftConfig  # noqa: E402
from factagent.train.sft import batches, collect, fit, keeps, learning_rate, sft_samples, with_tokens  # noqa: E402
from factagent.train.tiny import TinyConfig, build_model, build_tokenizer  # noqa: E402
from factagent.types import (  # noqa: E402
    Answer,
    Assert,
    Generation,
    Group,
    Invalid,
    Passage,
    Question,
    Search,
    Step,
    StopReason,
    Trajectory,
    Triple,
)

WROTE, BORN = Triple("The Trial", "author", "Kafka"), Triple("Kafka", "place of birth", "Prague")
QUESTIONS = [
    Question(f"q{i}", f"Where was the author of The Trial born ({i})?", ("Prague",), evidences=(WROTE, BORN))
    for i in range(5)
]
SETTINGS = RolloutSettings(group_size=1, record_messages=True)


class Shelf:
    passages = (
        Passage("p0", "The Trial", "The Trial is a novel by Kafka."),
        Passage("p1", "Kafka", "Kafka came from Prague."),
    )

    def search(self, queries, top_k):
        return [tuple(p for p in self.passages if p.title in query)[:top_k] for query in queries]


@pytest.fixture(scope="module")
def codec():
    words = ["Where", "was", "the", "author", "of", "The", "Trial", "born", "place", "birth", "Kafka", "Prague"]
    return ChatCodec(build_tokenizer(words))


def gather(protocol, count, policy=None, settings=SETTINGS, progress=lambda kept, tried: None, **sft):
    config = SftConfig(source="expert", trajectories=count, **sft)
    policy = policy or ScriptedExpert(protocol.prompt.style, protocol=protocol.name)
    return list(collect(QUESTIONS, protocol, policy, Shelf(), settings, config, 0, progress))


def factagent():
    return build_protocol("factagent", "factagent-terse")


FACT = Assert((BORN,))


@pytest.mark.parametrize(
    ("actions", "correct"),
    [
        ((Search("a"), FACT, Answer("Prague")), True),
        ((Search("a"), FACT, Answer("  the PRAGUE. ")), True),  # exact match after normalisation
        ((Search("a"), FACT, Answer("Prague city")), False),
        ((Search("a"), Answer("Prague")), False),  # nothing asserted
        ((Search("a"), Invalid("no_json"), FACT, Answer("Prague")), False),
        ((Search("a"), FACT), False),
        ((), False),
    ],
)
def test_rejection_sampling_keeps_right_answers_with_facts_and_strict_form(actions, correct):
    reason = StopReason.ANSWERED if actions else StopReason.PROMPT_TOO_LONG
    trajectory = Trajectory(tuple(Step(action) for action in actions), reason)
    assert keeps(QUESTIONS[0], trajectory, "correct") is correct
    assert keeps(QUESTIONS[0], trajectory, "all") is bool(actions)


def test_failures_are_never_imitated():
    failed = Trajectory((Step(Search("a")),), StopReason.RETRIEVAL_FAILED)
    assert not keeps(QUESTIONS[0], failed, "all")


@pytest.mark.parametrize("count", [1, 3, 5, 7, 12])
def test_collecting_stops_at_the_number_asked(count):
    seen = []
    groups = gather(factagent(), count, progress=lambda kept, tried: seen.append((kept, tried)))
    assert sum(len(group.trajectories) for group in groups) == count
    assert seen[-1] == (count, count)  # the expert is always right here, so each try is kept
    assert len({group.question.id for group in groups}) == min(count, 5)
    assert all(trajectory.messages for group in groups for trajectory in group.trajectories)


def test_collecting_cuts_a_group_and_keeps_only_what_passes():
    wide = replace(SETTINGS, group_size=4)
    noisy = ScriptedExpert("terse", 0.5)
    groups = gather(factagent(), 9, policy=noisy, settings=wide, keep="correct")
    kept = [(group.question, trajectory) for group in groups for trajectory in group.trajectories]
    assert len(kept) == 9
    assert all(keeps(question, trajectory, "correct") for question, trajectory in kept)
    assert len({tuple(step.generation.text for step in trajectory.steps) for _, trajectory in kept}) > 1


def test_collecting_ends_where_nothing_is_ever_right():
    class Silent:
        def generate(self, requests):
            return [Generation("no action") for _ in requests]

    seen = []
    assert gather(factagent(), 3, policy=Silent(), progress=lambda *counts: seen.append(counts)) == []
    assert seen == [(0, 5)]


def test_samples_of_a_protocol_that_rebuilds_its_prompt(codec):
    groups = gather(factagent(), 5)
    samples = sft_samples(groups, factagent(), codec, 8)
    steps = [
        (messages, step)
        for group in groups
        for trajectory in group.trajectories
        for messages, step in zip(trajectory.messages, trajectory.steps, strict=True)
    ]
    assert len(samples) == len(steps) == 25  # search, assert, search, assert, answer
    for sample, (messages, step) in zip(samples, steps, strict=True):
        assert tuple(sample.prompt_ids) == codec.encode_prompt(messages)
        assert codec.decode(sample.response_ids.tolist()) == step.generation.text
        assert sample.response_ids[-1] == codec.end_id
        assert sample.loss_mask.all()
        assert (sample.advantages == 1.0).all()


def test_samples_of_an_append_protocol_are_token_exact(codec):
    protocol = build_protocol("react", "react-terse")
    groups = gather(protocol, 5, keep="all")
    trajectories = [t for group in with_tokens(groups, protocol, codec, 8) for t in group]
    for trajectory in trajectories:
        assert len(trajectory.steps) >= 3
        for before, after in pairwise(step.generation for step in trajectory.steps):
            known = before.prompt_ids + before.response_ids
            assert after.prompt_ids[: len(known)] == known
            assert len(after.prompt_ids) > len(known)
    samples = sft_samples(groups, protocol, codec, 8)
    assert len(samples) == 5
    for sample, trajectory in zip(samples, trajectories, strict=True):
        learned = sample.response_ids[sample.loss_mask].tolist()
        assert learned == [token for step in trajectory.steps for token in step.generation.response_ids]
        assert not sample.loss_mask.all()  # observations carry no loss
        last = trajectory.steps[-1].generation
        assert (*sample.prompt_ids, *sample.response_ids) == last.prompt_ids + last.response_ids
        # What the model reads is what the template writes for the whole conversation.
        text = codec.tokenizer.decode([*sample.prompt_ids, *sample.response_ids])
        assert text.count("<|assistant|>") == text.count("<|end|>") == len(trajectory.steps)


def test_tokens_that_a_policy_sampled_are_never_encoded_again(codec):
    odd = Generation("Prague", (5, 6), (70, 71, 72), (-1.0, -1.0, -1.0))  # not how the tokenizer would write it
    trajectory = Trajectory((Step(Answer("Prague"), odd),), messages=((),))
    assert with_tokens([Group(QUESTIONS[0], (trajectory,))], factagent(), codec, 8) == [[trajectory]]
    sample = sft_samples([Group(QUESTIONS[0], (trajectory,))], factagent(), codec, 8)[0]
    assert sample.response_ids.tolist() == [70, 71, 72]


def test_learning_rate_rises_then_falls_to_zero():
    config = SftConfig(learning_rate=1.0, warmup_ratio=0.2)
    rates = [learning_rate(config, step, 20) for step in range(20)]
    assert rates[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert rates[12] == pytest.approx(0.5)
    assert all(a >= b for a, b in pairwise(rates[4:]))
    assert 0 < rates[-1] < 0.02
    assert learning_rate(config, 0, 1) == 1.0


def test_every_sample_is_seen_once_an_epoch_in_batches_of_like_length():
    lengths = np.random.default_rng(0).integers(5, 200, size=103).tolist()
    config = SftConfig(batch_size=8, epochs=3)
    plan = batches(lengths, config, 1)
    assert len(plan) == 3 * 13
    for epoch in range(3):
        cut = plan[13 * epoch : 13 * (epoch + 1)]
        assert sorted(index for batch in cut for index in batch) == list(range(103))
        assert sum(max(lengths[i] for i in batch) * len(batch) for batch in cut) < 1.15 * sum(lengths)
    assert plan == batches(lengths, config, 1)
    assert plan[:13] != plan[13:26]
    assert plan != batches(lengths, config, 2)


def make_model(codec):
    model = build_model(TinyConfig(hidden_size=16, layers=1, heads=2, intermediate_size=32), codec.tokenizer)
    return model, torch.optim.AdamW(model.parameters(), lr=1.0, weight_decay=0.0)


def test_the_loss_falls_and_a_start_in_the_middle_goes_on(codec):
    samples = sft_samples(gather(factagent(), 5), factagent(), codec, 8)
    config = SftConfig(batch_size=8, epochs=6, learning_rate=3e-2, precision="fp32")
    model, optimizer = make_model(codec)
    done = list(fit(model, optimizer, samples, config, 0))
    assert [batch.step for batch in done] == list(range(1, 25))
    assert done[0].loss == pytest.approx(np.log(len(codec.tokenizer)), rel=0.1)
    assert np.mean([batch.loss for batch in done[-4:]]) < 0.7 * done[0].loss
    assert sum(batch.tokens for batch in done[:4]) == sum(len(sample.response_ids) for sample in samples)
    again, other = make_model(codec)
    first = []
    for batch in fit(again, other, samples, config, 0):
        first.append(batch)
        if batch.step == 10:
            break
    rest = list(fit(again, other, samples, config, 0, start=10))
    assert [batch.loss for batch in first + rest] == [batch.loss for batch in done]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
