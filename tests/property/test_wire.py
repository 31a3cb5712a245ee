from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from factagent.retrieval.base import RetrievalError
from factagent.retrieval.wire import (
    Call,
    Form,
    RequestError,
    contents_of,
    decode_error,
    decode_reply,
    decode_request,
    encode_error,
    encode_reply,
    encode_request,
)
from factagent.types import Passage

URL = "http://127.0.0.1:1/retrieve"
TEXT = st.text(max_size=20)
SCORES = st.floats(allow_nan=False, allow_infinity=False)
PASSAGES = st.builds(Passage, TEXT, TEXT.map(lambda title: title.replace("\n", " ")), TEXT, SCORES)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | SCORES | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["result", "document", "score", "id", "contents", "text", "query", "queries", "topk", "top_k"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    form = draw(st.sampled_from(Form))
    queries = draw(st.lists(TEXT, max_size=4) if form.takes_many else st.lists(TEXT, min_size=1, max_size=1))
    scores = form is not Form.ZEROSEARCH and draw(st.booleans())
    return Call(form, tuple(queries), draw(st.none() | st.integers(1, 100)), scores)


@given(calls())
def test_a_request_reads_back_as_it_was_written(call: Call) -> None:
    assert decode_request(call.form.path, encode_request(call)) == call


@given(st.data(), calls())
def test_a_reply_reads_back_as_far_as_its_form_can_say(data: st.DataObject, call: Call) -> None:
    found = st.lists(PASSAGES, max_size=min(4, call.top_k or 4)).map(tuple)
    results = [data.draw(found) for _ in call.queries]
    read = decode_reply(call, encode_reply(call, results), URL)

    def said(passage: Passage) -> tuple[object, ...]:
        kept = (passage.title, passage.text, passage.score if call.scores else 0.0)
        return kept if call.form is Form.ZEROSEARCH else (passage.id, *kept)

    assert [[said(p) for p in found] for found in read] == [[said(p) for p in found] for found in results]


@given(calls(), JSON)
def test_any_json_is_a_reply_or_an_error_that_names_the_url(call: Call, value: object) -> None:
    try:
        results = decode_reply(call, orjson.dumps(value), URL)
    except RetrievalError as error:
        assert str(error).startswith(f"{URL}: reply field '")
    else:
        assert len(results) == len(call.queries)


@given(st.sampled_from([form.path for form in Form]), JSON | st.binary(max_size=40))
def test_any_body_is_a_call_or_a_refusal(path: str, body: object) -> None:
    try:
        call = decode_request(path, body if isinstance(body, bytes) else orjson.dumps(body))
    except RequestError as error:
        assert 400 <= error.status < 500
        assert decode_error(encode_error(error)).startswith(f"{error.code}: ")
    else:
        assert call.form.path == path


@given(TEXT, TEXT)
def test_a_query_with_half_a_surrogate_pair_can_be_sent(before: str, after: str) -> None:
    call = Call(Form.SEARCH_R1, (f"{before}\ud800{after}",), 3)
    assert decode_request("/retrieve", encode_request(call)).queries == (f"{before}?{after}",)


@given(PASSAGES)
def test_contents_are_a_quoted_title_and_the_text(passage: Passage) -> None:
    assert contents_of(passage).split("\n", 1) == [f'"{passage.title}"', passage.text]
