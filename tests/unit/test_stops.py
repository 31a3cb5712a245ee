"""Stop strings: a local reply ends with the token that completes one, whatever tokens spell it."""

from __future__ import annotations

import random
from itertools import accumulate, pairwise

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM  # noqa: E402

from factagent.policies.sampling import generate_batch, uniforms_of  # noqa: E402
from factagent.policies.stops import StopStrings  # noqa: E402
from factagent.train.tiny import build_tokenizer  # noqa: E402

STOPS = ("</search>", "</answer>")
PIECES = ("</search>", "</answer>", "</", "search", ">", "<", "answer", "/", "é", "語", " Lund", "\n", "ch>\n")


@pytest.fixture(scope="module")
def qwen(shared_data):
    return AutoTokenizer.from_pretrained(shared_data / "tokenizers" / "qwen2.5", local_files_only=True)


@pytest.fixture(scope="module")
def tiny():
    return build_tokenizer(["Lund", "search"])


def text_of(tokenizer, tokens):
    return tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def expected_end(tokenizer, tokens):
    """The definition, at its full cost: the first prefix whose text holds a stop string."""
    for end in range(1, len(tokens) + 1):
        if any(stop in text_of(tokenizer, tokens[:end]) for stop in STOPS):
            return end
    return None


@pytest.mark.parametrize("name", ["qwen", "tiny"])
def test_the_end_is_where_the_text_first_holds_a_stop_string(name, request):
    tokenizer = request.getfixturevalue(name)
    stops = StopStrings(tokenizer, STOPS)
    draw = random.Random(7)
    found = 0
    for _ in range(300):
        pieces = [draw.choice(PIECES) for _ in range(draw.randrange(12))]
        # Each piece encoded by itself: the same text comes in many spellings.
        tokens = [token for piece in pieces for token in tokenizer.encode(piece, add_special_tokens=False)]
        end = expected_end(tokenizer, tokens)
        assert stops.end_of(tokens) == end, pieces
        found += end is not None
        # Looking again and again as tokens come gives the same end.
        starts = accumulate([draw.randrange(1, 4) for _ in tokens], initial=0)
        looks = [min(start, len(tokens)) for start in starts]
        ends = (stops.end_of(tokens[:stop], start) for start, stop in pairwise(looks))
        assert next((one for one in ends if one is not None), None) == end, pieces
    assert 50 < found < 300


def test_only_tokens_that_can_complete_a_stop_string_are_decoded(qwen, monkeypatch):
    stops = StopStrings(qwen, STOPS)
    assert len(stops.closing) < 0.02 * len(qwen)
    decoded = []
    monkeypatch.setattr(stops, "_decode", lambda rows: decoded.append(rows) or [""])
    assert stops.end_of(qwen.encode("no bracket at all, for a while")) is None
    assert decoded == []


@pytest.fixture(scope="module")
def model(tiny):
    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tiny), num_key_value_heads=4, initializer_range=0.4, **sizes))


@pytest.fixture
def spelling(model, tiny):
    """Makes the model write one text after any prompt of three tokens, byte by byte."""
    handles = []

    def write(text):
        ids = torch.tensor(tiny.encode(text, add_special_tokens=False))

        def force(_, args, kwargs, output):
            position = int(kwargs["position_ids"][0, -1]) - 2
            if 0 <= position < len(ids):
                output.logits[:, -1] = -1e4
                output.logits[:, -1, ids[position]] = 1e4
            return output

        handles.append(model.register_forward_hook(force, with_kwargs=True))
        return tuple(ids.tolist())

    yield write
    for handle in handles:
        handle.remove()


def sample(model, count, stop_strings, **options):
    draws = uniforms_of([("k", i) for i in range(count)], 60)
    settings = {"temperature": 1.0, "max_new_tokens": 60, "stop_ids": [0]} | options
    return generate_batch(model, [(5, 6, 7)] * count, draws, stop_strings=stop_strings, **settings)


@pytest.mark.parametrize("look_every", [1, 8])
def test_a_row_ends_with_the_token_that_completes_its_string(model, tiny, spelling, look_every, monkeypatch):
    monkeypatch.setattr("factagent.policies.sampling._look_every", lambda device: look_every)
    ids = spelling("<search>who</search> and more <answer>x</answer>")
    end = len(tiny.encode("<search>who</search>", add_special_tokens=False))
    search, answer = StopStrings(tiny, STOPS[:1]), StopStrings(tiny, STOPS[1:])
    one, two, three = sample(model, 3, [search, None, answer])
    assert (one.response_ids, one.finish_reason) == (ids[:end], "stop")
    assert len(one.logprobs) == end
    assert two.response_ids[: len(ids)] == ids
    assert len(two.response_ids) == 60
    assert (three.response_ids, three.finish_reason) == (ids, "stop")


def test_an_end_token_before_the_string_ends_the_row(model, tiny, spelling):
    ids = spelling("<search>who</search>")
    [early] = sample(model, 1, [StopStrings(tiny, STOPS)], stop_ids=[ids[3]])
    assert early.response_ids == ids[: ids.index(ids[3]) + 1]


def test_stop_strings_change_no_other_row(model, tiny):
    stops = StopStrings(tiny, (">", "a", "e", "i", "o"))
    alone, both = sample(model, 6, None), sample(model, 6, [stops, None] * 3)
    assert min(len(one.response_ids) for one in both[::2]) < 60
    for i, (left, right) in enumerate(zip(alone, both, strict=True)):
        cut = stops.end_of(left.response_ids) if i % 2 == 0 else None
        assert right.response_ids == left.response_ids[:cut]
        assert right.logprobs == pytest.approx(left.logprobs[:cut], abs=1e-4)


def test_one_entry_a_prompt(model):
    with pytest.raises(ValueError, match="1 entries of stop_strings for 2 prompts"):
        sample(model, 2, [None])
