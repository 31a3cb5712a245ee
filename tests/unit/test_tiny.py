"""The tiny policy's tokenizer and model: any text survives, words and boilerplate are single tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from pydantic import ValidationError  # noqa: E402

from factagent.policies.chat import ChatCodec  # noqa: E402
from factagent.policies.scripted_replies import Reply, write_reply  # noqa: E402
from factagent.protocols.actions import parse_action  # noqa: E402
from factagent.train.tiny import (  # noqa: E402
    ASSISTANT,
    BOILERPLATE,
    END,
    MARKS,
    PAD,
    SYSTEM,
    USER,
    TinyConfig,
    build_model,
    build_tokenizer,
    collect_words,
)
from factagent.types import Answer, Assert, Message, Passage, Question, Search, Triple  # noqa: E402

WORDS = ["Kafka", "Prague", "born", "in", "O'Neill", "Jean-Luc", "née", "1883", "漢字"]
SPECIAL = (PAD, END, SYSTEM, USER, ASSISTANT)


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(WORDS)


TOKENIZER = build_tokenizer(WORDS)
TEXT = st.text(st.characters(exclude_categories=["Cs"])) | st.lists(
    st.sampled_from([*BOILERPLATE, *MARKS, *WORDS, *SPECIAL, *(f" {w}" for w in WORDS), "<", "|", "\n", "\\", '"'])
).map("".join)


@given(TEXT)
def test_any_text_survives(text):
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    assert TOKENIZER.decode(ids, clean_up_tokenization_spaces=False) == text


@given(TEXT)
def test_any_reply_survives_and_any_content_keeps_the_roles(text):
    codec = ChatCodec(TOKENIZER)
    ids = codec.encode_prompt([Message("user", text)])
    control = set(TOKENIZER.convert_tokens_to_ids(list(SPECIAL)))
    assert [i for i in ids if i in control] == TOKENIZER.convert_tokens_to_ids([USER, ASSISTANT])
    if not any(special in text for special in SPECIAL):
        assert codec.decode(codec.encode_replies([text])[0]) == text


@pytest.mark.parametrize("token", [*BOILERPLATE, *MARKS, *(f" {word}" for word in WORDS), *SPECIAL])
def test_words_marks_and_boilerplate_are_single_tokens(tokenizer, token):
    ids = tokenizer(token, add_special_tokens=False)["input_ids"]
    assert len(ids) == 1
    assert tokenizer.decode(ids) == token


def test_a_terse_reply_is_boilerplate_and_words(tokenizer):
    triples = (Triple("Kafka", "born in", "Prague"), Triple("O'Neill", "born", "1883"))
    for action, length in ((Search("Kafka born"), 7), (Answer("Prague"), 6), (Assert(triples), 17)):
        text = write_reply(Reply("find Kafka", action), "terse")
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert parse_action(tokenizer.decode(ids)) == action
        assert len(ids) == length


def test_a_prompt_is_one_token_a_word(tokenizer):
    text = "Q Kafka born in Prague\n- Kafka | born in | Prague\n? Kafka\n* Kafka : born in Prague\nR 3"
    assert len(tokenizer(text, add_special_tokens=False)["input_ids"]) == 22


def test_words_of_a_corpus_come_by_frequency_then_spelling():
    passages = [Passage("p", "b a", "b b c-d d'e, x_y")]
    questions = [Question("q", "a z?", ("zz top",))]
    words = collect_words(passages, questions, [Triple("a", "c-d", "12")])
    assert words == ["a", "b", "c-d", "12", "d'e", "top", "x", "y", "z", "zz"]
    assert collect_words(passages, questions, [], limit=2) == ["b", "a"]


def test_the_tokenizer_does_not_depend_on_repeats_and_saves_to_the_same_bytes(tokenizer, tmp_path):
    twice = build_tokenizer([*WORDS, *WORDS])
    assert twice.get_vocab() == tokenizer.get_vocab()
    for name in ("a", "b"):
        build_tokenizer(WORDS).save_pretrained(tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert "tokenizer.json" in files
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in files)


def test_the_model_is_a_function_of_its_seed_and_leaves_global_draws_alone(tokenizer):
    size = TinyConfig(hidden_size=16, layers=2, heads=2, intermediate_size=32)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, two = build_model(size, tokenizer), build_model(size, tokenizer)
    assert torch.equal(torch.rand(1), expected)
    other = build_model(size.model_copy(update={"seed": 1}), tokenizer)
    pairs = list(zip(one.parameters(), two.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert not all(torch.equal(a, c) for a, _, c in pairs)
    assert one.config.vocab_size == len(tokenizer)
    assert one.config.eos_token_id == tokenizer.eos_token_id
    assert one.get_input_embeddings().weight is one.get_output_embeddings().weight


@pytest.mark.parametrize("wrong", [{"hidden_size": 4}, {"layers": 0}, {"heads": 0}, {"width": 3}])
def test_sizes_out_of_range_are_refused(wrong):
    with pytest.raises(ValidationError):
        TinyConfig(**wrong)
