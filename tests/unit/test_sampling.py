"""The sampler: same request, same reply, whatever the batch; log-probabilities that a learner can reproduce."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # spinning threads starve each other where tests share cores

from transformers import GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM  # noqa: E402

from factagent.policies import sampling  # noqa: E402
from factagent.policies.sampling import draw, generate_batch, nucleus, uniforms_of  # noqa: E402

VOCABULARY = 61
NEW = 12


@pytest.fixture(scope="module")
def model() -> Qwen2ForCausalLM:
    torch.manual_seed(3)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.5,
    )
    return Qwen2ForCausalLM(config)


def prompts_of(lengths: list[int]) -> list[list[int]]:
    generator = np.random.default_rng(5)
    return [generator.integers(1, VOCABULARY, length).tolist() for length in lengths]


PROMPTS = prompts_of([7, 31, 7, 2, 19, 1, 44, 12])
KEYS = [("run", 0, f"q{i}", i) for i in range(len(PROMPTS))]


def sample(model, prompts, keys, **options):
    options = {"temperature": 0.9, "max_new_tokens": NEW, "stop_ids": [4, 9]} | options
    return generate_batch(model, prompts, uniforms_of(keys, options["max_new_tokens"]), **options)


def teacher_forced(model, prompt, response, temperature):
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, -1).gather(1, torch.tensor(response)[:, None])[:, 0].tolist()


def assert_same(left, right):
    assert [(s.response_ids, s.finish_reason) for s in left] == [(s.response_ids, s.finish_reason) for s in right]
    for a, b in zip(left, right, strict=True):
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_logprobs_equal_a_teacher_forced_forward(model, temperature):
    for prompt, result in zip(PROMPTS, sample(model, PROMPTS, KEYS, temperature=temperature), strict=True):
        expected = teacher_forced(model, prompt, result.response_ids, temperature or 1.0)
        assert result.logprobs == pytest.approx(expected, abs=1e-4)


def test_greedy_equals_greedy_decoding_one_by_one(model):
    for prompt, result in zip(PROMPTS, sample(model, PROMPTS, KEYS, temperature=0.0, stop_ids=[]), strict=True):
        ids = list(prompt)
        for _ in range(NEW):
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        assert result.response_ids == tuple(ids[len(prompt) :])


def test_sampled_tokens_follow_the_inverse_cdf_of_their_own_stream(model):
    [result] = sample(model, PROMPTS[:1], KEYS[:1], temperature=1.0, stop_ids=[])
    ids, draws = list(PROMPTS[0]), uniforms_of(KEYS[:1], NEW)[0]
    for u in draws:
        with torch.no_grad():
            cdf = np.cumsum(torch.softmax(model(torch.tensor([ids])).logits[0, -1].double(), -1).numpy())
        ids.append(int(np.searchsorted(cdf, u * cdf[-1], side="right")))
    assert result.response_ids == tuple(ids[len(PROMPTS[0]) :])


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [
        (0.01, [1]), (0.44, [1]), (0.46, [1, 3]), (0.69, [1, 3]), (0.71, [0, 1, 3]), (0.84, [0, 1, 3]),
        (0.86, [0, 1, 2, 3]), (0.94, [0, 1, 2, 3]), (0.96, [0, 1, 2, 3, 4]), (1.0, [0, 1, 2, 3, 4]),
    ],
)  # fmt: skip
def test_the_nucleus_holds_the_fewest_tokens_that_reach_the_mass(top_p, kept):
    # In falling order: tokens 1 (.45), 3 (.25, .7 with it), 0 (.15, .85), 2 (.1, .95), 4 (.05).
    probabilities = torch.tensor([[0.15, 0.45, 0.1, 0.25, 0.05]])
    ordered = nucleus(probabilities, top_p)[0]
    assert ordered.nonzero()[:, 0].tolist() == kept
    assert ordered[kept].tolist() == probabilities[0, kept].tolist()
    # 400 even draws reach each token of it as often as its share of it says, and no other.
    draws = (torch.arange(400, dtype=torch.float64) + 0.5) / 400
    tokens, logprobs = draw(probabilities.log().expand(400, -1), draws, 1.0, top_p)
    shares = torch.bincount(tokens, minlength=5) / 400
    assert torch.allclose(shares, ordered / ordered.sum(), atol=1 / 400)
    assert torch.allclose(logprobs, probabilities[0].log()[tokens], atol=1e-6)


def test_ties_in_a_nucleus_go_to_the_smaller_token():
    assert nucleus(torch.full((2, 4), 0.25), 0.5).tolist() == [[0.25, 0.25, 0, 0]] * 2
    rows = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.25, 0.5]])
    assert nucleus(rows, 0.5).tolist() == [[0.5, 0, 0], [0, 0, 0.5]]
    assert nucleus(rows, 0.75).tolist() == [[0.5, 0.25, 0], [0.25, 0, 0.5]]


def test_the_whole_distribution_is_drawn_from_as_without_a_nucleus(model):
    assert sample(model, PROMPTS, KEYS, top_p=1.0) == sample(model, PROMPTS, KEYS)
    assert sample(model, PROMPTS, KEYS, temperature=0.0, top_p=0.3) == sample(model, PROMPTS, KEYS, temperature=0.0)
    with pytest.raises(ValueError, match="top_p=0 must be above 0 and at most 1"):
        sample(model, PROMPTS, KEYS, top_p=0)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_a_nucleus_bounds_the_tokens_and_keeps_the_logprobs_of_the_whole_distribution(model, temperature):
    narrow = sample(model, PROMPTS, KEYS, temperature=temperature, top_p=0.5)
    assert narrow != sample(model, PROMPTS, KEYS, temperature=temperature)
    for prompt, result in zip(PROMPTS, narrow, strict=True):
        expected = teacher_forced(model, prompt, result.response_ids, temperature)
        assert result.logprobs == pytest.approx(expected, abs=1e-4)
        for step, token in enumerate(result.response_ids):
            with torch.no_grad():
                logits = model(torch.tensor([[*prompt, *result.response_ids[:step]]])).logits[0, -1]
            probabilities = torch.softmax(logits.double() / temperature, -1)
            assert float(probabilities[probabilities > probabilities[token]].sum()) < 0.5


def test_a_narrow_nucleus_is_greedy(model):
    greedy = sample(model, PROMPTS, KEYS, temperature=0.0, stop_ids=[])
    narrow = sample(model, PROMPTS, KEYS, temperature=1.0, top_p=1e-6, stop_ids=[])
    assert [s.response_ids for s in narrow] == [s.response_ids for s in greedy]


@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_order_of_the_batch_changes_nothing_at_all(model, top_p):
    straight = sample(model, PROMPTS, KEYS, top_p=top_p)
    order = [5, 0, 7, 3, 1, 6, 2, 4]
    shuffled = sample(model, [PROMPTS[i] for i in order], [KEYS[i] for i in order], top_p=top_p)
    assert [straight[i] for i in order] == shuffled


@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_composition_of_the_batch_changes_no_token(model, monkeypatch, top_p):
    together = sample(model, PROMPTS, KEYS, top_p=top_p)
    alone = [sample(model, [prompt], [key], top_p=top_p)[0] for prompt, key in zip(PROMPTS, KEYS, strict=True)]
    assert_same(together, alone)
    assert_same(together, sample(model, PROMPTS, KEYS, max_batch_tokens=64, top_p=top_p))
    monkeypatch.setattr(sampling, "PREFILL_TOKENS", 20)
    monkeypatch.setattr(sampling, "GROW_TOKENS", 3)
    monkeypatch.setattr(sampling, "COMPACT_SHARE", 1.0)
    assert_same(together, sample(model, PROMPTS, KEYS, top_p=top_p))


def test_more_tokens_allowed_extend_the_same_reply(model):
    short, long = sample(model, PROMPTS, KEYS, max_new_tokens=5), sample(model, PROMPTS, KEYS, max_new_tokens=50)
    for a, b in zip(short, long, strict=True):
        assert a.response_ids == b.response_ids[: len(a.response_ids)]
        assert a.finish_reason == "length" or a.response_ids == b.response_ids


def test_equal_prompts_are_read_once_and_sampled_apart(model):
    rows = []
    handle = model.model.layers[0].register_forward_hook(lambda _, __, out: rows.append(tuple(out.shape[:2])))
    group = sample(model, [PROMPTS[1]] * 6, [("g", i) for i in range(6)], stop_ids=[])
    handle.remove()
    assert rows[0] == (1, len(PROMPTS[1]))
    assert rows[1] == (6, 1)
    assert len({s.response_ids for s in group}) == 6
    assert_same(group, [sample(model, [PROMPTS[1]], [("g", i)], stop_ids=[])[0] for i in range(6)])


def test_stop_token_is_part_of_the_reply_and_ends_it(model):
    results = sample(model, PROMPTS * 4, [(*key, n) for n in range(4) for key in KEYS], max_new_tokens=40)
    assert {"stop", "length"} >= {s.finish_reason for s in results}
    stopped = [s for s in results if s.finish_reason == "stop"]
    assert stopped
    for s in results:
        assert len(s.logprobs) == len(s.response_ids)
        assert not {4, 9} & set(s.response_ids[:-1])
        assert (s.response_ids[-1] in (4, 9)) == (s.finish_reason == "stop")
        assert s.finish_reason == "stop" or len(s.response_ids) == 40


def test_finished_rows_leave_the_batch(model):
    rows = []
    handle = model.model.layers[0].register_forward_hook(lambda _, __, out: rows.append(out.shape[0]))
    results = sample(model, PROMPTS * 4, [(*key, n) for n in range(4) for key in KEYS], max_new_tokens=60)
    handle.remove()
    lengths = [len(s.response_ids) for s in results]
    assert rows[-1] < rows[1] == 32
    assert len(rows) - 1 == max(lengths) - 1  # one prefill, then a step for each token but the last


def test_other_architectures_work_too():
    torch.manual_seed(0)
    other = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=128, n_embd=32, n_layer=2, n_head=2))
    for prompt, result in zip(PROMPTS, sample(other, PROMPTS, KEYS, temperature=1.0), strict=True):
        other.eval()
        assert result.logprobs == pytest.approx(teacher_forced(other, prompt, result.response_ids, 1.0), abs=1e-4)


def test_sliding_window_layers_keep_their_own_cache():
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_sliding_window=True,
        sliding_window=8,
        max_window_layers=1,
    )
    sliding = Qwen2ForCausalLM(config).eval()
    assert "sliding_attention" in config.layer_types
    for prompt, result in zip(PROMPTS, sample(sliding, PROMPTS, KEYS, temperature=1.0), strict=True):
        assert result.logprobs == pytest.approx(teacher_forced(sliding, prompt, result.response_ids, 1.0), abs=1e-4)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_the_model_is_restored(model, training):
    model.train(training)
    sample(model, PROMPTS[:1], KEYS[:1])
    assert model.training is training
    model.train(False)


def test_bfloat16_autocast_stays_near(model):
    exact = sample(model, PROMPTS, KEYS, temperature=1.0, autocast=True)
    for prompt, result in zip(PROMPTS, exact, strict=True):
        expected = teacher_forced(model, prompt, result.response_ids, 1.0)
        assert result.logprobs == pytest.approx(expected, abs=0.5)
        assert max(abs(a - b) for a, b in zip(result.logprobs, expected, strict=True)) > 0


def test_draw_never_takes_a_token_without_probability():
    logits = torch.tensor([[float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")]])
    for u, expected in [(0.0, 1), (0.4999, 1), (0.5, 3), (1 - 2**-53, 3)]:
        token, logprob = draw(logits, torch.tensor([u], dtype=torch.float64), 1.0)
        assert int(token) == expected
        assert float(logprob) == pytest.approx(np.log(0.5))


def test_draw_matches_the_distribution_at_its_temperature():
    logits = torch.tensor([0.0, 1.0, 2.0])
    n = 20_000
    uniforms = torch.from_numpy((np.arange(n) + 0.5) / n)
    token, logprob = draw(logits.expand(n, 3), uniforms, 0.5)
    expected = torch.softmax(logits / 0.5, 0)
    assert torch.bincount(token, minlength=3) / n == pytest.approx(expected, abs=1e-4)
    assert torch.allclose(logprob.exp(), expected[token])


def test_uniforms_are_named_by_their_key():
    one = uniforms_of([("a", 1), ("a", "1")], 4)
    assert (one[0] != one[1]).all()
    assert (uniforms_of([("a", 1)], 9)[0, :4] == one[0]).all()
    assert uniforms_of([], 4).shape == (0, 4)


def test_bad_input_is_refused(model):
    with pytest.raises(ValueError, match="without tokens"):
        sample(model, [[]], KEYS[:1])
    with pytest.raises(ValueError, match="max_new_tokens=0"):
        sample(model, PROMPTS, KEYS, max_new_tokens=0)
    assert sample(model, [], []) == []
