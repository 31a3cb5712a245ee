from __future__ import annotations

from typing import Any

import orjson
import pytest

from factagent.retrieval.base import RetrievalError
from factagent.retrieval.wire import (
    Call,
    Form,
    RequestError,
    decode_error,
    decode_reply,
    decode_request,
    encode_reply,
)
from factagent.types import Passage

URL = "http://127.0.0.1:1"
ONE = Passage("7", "Lisbon", "Lisbon is in Portugal.", 1.5)
DOCUMENT = {"id": "7", "contents": '"Lisbon"\nLisbon is in Portugal.'}


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (
            "/retrieve",
            {"queries": ["a", "b"], "topk": 5, "return_scores": True},
            Call(Form.SEARCH_R1, ("a", "b"), 5, True),
        ),
        ("/retrieve", {"queries": ["a"]}, Call(Form.SEARCH_R1, ("a",))),
        ("/retrieve", {"queries": ["a"], "topk": 0}, Call(Form.SEARCH_R1, ("a",))),
        ("/retrieve", {"queries": ["a"], "topk": 3.0}, Call(Form.SEARCH_R1, ("a",), 3)),
        ("/retrieve", {"queries": ["a"], "topk": None}, Call(Form.SEARCH_R1, ("a",))),
        ("/retrieve", {"query": "a", "topk": 5, "return_scores": True}, Call(Form.VERL_AGENT, ("a",), 5, True)),
        ("/retrieve", {"query": "a"}, Call(Form.VERL_AGENT, ("a",))),
        ("/retrieve", {"query": "a", "top_k": 4}, Call(Form.ZEROSEARCH, ("a",), 4)),
        ("/search", {"query": "a"}, Call(Form.RESEARCH, ("a",), 10)),
        ("/search", {"query": "a", "top_n": 2, "return_score": True}, Call(Form.RESEARCH, ("a",), 2, True)),
        ("/batch_search", {"query": ["a", "b"], "top_n": None}, Call(Form.RESEARCH_BATCH, ("a", "b"))),
    ],
)
def test_the_fields_of_a_request_choose_its_form(path: str, body: dict[str, Any], expected: Call) -> None:
    assert decode_request(path, orjson.dumps(body)) == expected


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "field"),
    [
        ("/retrieve", b"", 400, "bad_json", None),
        ("/retrieve", b'{"queries": [NaN]}', 400, "bad_json", None),
        ("/retrieve", b'{"queries": ["\xff"]}', 400, "bad_json", None),
        ("/retrieve", b'{"queries": ["\\ud800"]}', 400, "bad_json", None),
        ("/retrieve", b"[" * 100_000, 400, "bad_json", None),
        ("/retrieve", b"[]", 422, "wrong_type", None),
        ("/retrieve", b"{}", 422, "missing_field", "queries"),
        ("/retrieve", b'{"queries": "a"}', 422, "wrong_type", "queries"),
        ("/retrieve", b'{"queries": ["a", 1]}', 422, "wrong_type", "queries[1]"),
        ("/retrieve", b'{"queries": ["a"], "query": "a"}', 422, "unknown_field", "query"),
        ("/retrieve", b'{"queries": ["a"], "top_k": 3}', 422, "unknown_field", "top_k"),
        ("/retrieve", b'{"query": "a", "topk": 3, "top_k": 3}', 422, "unknown_field", "topk"),
        ("/retrieve", b'{"query": ["a"]}', 422, "wrong_type", "query"),
        ("/retrieve", b'{"queries": ["a"], "topk": -1}', 422, "wrong_type", "topk"),
        ("/retrieve", b'{"queries": ["a"], "topk": true}', 422, "wrong_type", "topk"),
        ("/retrieve", b'{"queries": ["a"], "topk": 1.5}', 422, "wrong_type", "topk"),
        ("/retrieve", b'{"queries": ["a"], "return_scores": 1}', 422, "wrong_type", "return_scores"),
        ("/search", b'{"queries": ["a"]}', 422, "unknown_field", "queries"),
        ("/search", b'{"top_n": 3}', 422, "missing_field", "query"),
        ("/batch_search", b'{"query": "a"}', 422, "wrong_type", "query"),
    ],
)
def test_a_bad_request_is_refused_by_code_and_field(
    path: str, body: bytes, status: int, code: str, field: str | None
) -> None:
    with pytest.raises(RequestError) as refused:
        decode_request(path, body)
    assert (refused.value.status, refused.value.code, refused.value.field) == (status, code, field)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (Call(Form.SEARCH_R1, ("a",), 1, True), {"result": [[{"document": DOCUMENT, "score": 1.5}]]}),
        (Call(Form.SEARCH_R1, ("a",), 1), {"result": [[DOCUMENT]]}),
        (Call(Form.VERL_AGENT, ("a",), 1, True), {"result": [[{"document": DOCUMENT, "score": 1.5}]]}),
        (Call(Form.RESEARCH, ("a",), 1), [DOCUMENT]),
        (Call(Form.RESEARCH, ("a",), 1, True), [[DOCUMENT], [1.5]]),
        (Call(Form.RESEARCH_BATCH, ("a",), 1), [[DOCUMENT]]),
        (Call(Form.RESEARCH_BATCH, ("a",), 1, True), [[[DOCUMENT]], [[1.5]]]),
        (Call(Form.ZEROSEARCH, ("a",), 1), [{"text": DOCUMENT["contents"]}]),
    ],
)
def test_replies_are_what_the_clients_of_each_form_read(call: Call, expected: object) -> None:
    assert orjson.loads(encode_reply(call, [(ONE,)])) == expected


SCORED = Call(Form.SEARCH_R1, ("a",), 1, True)


@pytest.mark.parametrize(
    ("call", "body", "part"),
    [
        (SCORED, b"<html>", "the reply is not JSON"),
        (SCORED, b'{"result": [[{"document": {"contents": "a"}, "score": NaN}]]}', "the reply is not JSON"),
        (SCORED, b"{}", "'result' is missing"),
        (SCORED, b'{"result": []}', "'result' holds 0 results for 1 queries"),
        (SCORED, b'{"result": [[{}]]}', "'result[0][0].document' is missing"),
        (SCORED, b'{"result": [[{"document": {"contents": "a"}}]]}', "'result[0][0].score' is missing"),
        (
            SCORED,
            b'{"result": [[{"document": {"contents": "a"}, "score": null}]]}',
            "'result[0][0].score' must be a finite",
        ),
        (SCORED, b'{"result": [[{"document": {"id": 1}, "score": 1}]]}', "'result[0][0].document.contents' is missing"),
        (
            SCORED,
            b'{"result": [[{"document": {"id": [], "contents": "a"}, "score": 1}]]}',
            "document.id' must be a string",
        ),
        (SCORED, b'{"result": [[1, 2]]}', "'result[0]' holds 2 passages where 1 were asked for"),
        (Call(Form.RESEARCH, ("a",), 1, True), b"[[], [], []]", "'(whole body)' must be a list of two"),
        (Call(Form.RESEARCH, ("a",), 1, True), b'[[{"contents": "a"}], []]', "'[1]' holds 0 scores for 1 documents"),
        (
            Call(Form.RESEARCH_BATCH, ("a",), 1, True),
            b'[[[{"contents": "a"}]], [["b"]]]',
            "'[1][0][0]' must be a finite",
        ),
        (Call(Form.ZEROSEARCH, ("a",), 1), b'[{"text": 3}]', "'[0].text' must be a string"),
    ],
)
def test_a_malformed_reply_names_url_and_field(call: Call, body: bytes, part: str) -> None:
    with pytest.raises(RetrievalError) as error:
        decode_reply(call, body, URL)
    assert str(error.value).startswith(URL)
    assert part in str(error.value)


def test_foreign_documents_without_an_id_get_a_stable_one_and_whole_numbers_become_text() -> None:
    body = b'{"result": [[{"contents": "\\"T\\"\\na"}, {"contents": "\\"T\\"\\na"}, {"id": 12, "contents": "b"}]]}'
    ((first, second, third),) = decode_reply(Call(Form.SEARCH_R1, ("q",), 3), body, URL)
    assert first == second
    assert first.id.startswith("sha256:")
    assert (first.title, first.text, third) == ("T", "a", Passage("12", "", "b"))


def test_foreign_errors_are_shown_in_short() -> None:
    assert decode_error(b'{"error": {"code": "c", "message": "m", "field": "f"}}') == "c: m (field 'f')"
    assert decode_error(b'{"detail": "Not Found"}') == '{"detail": "Not Found"}'
    assert len(decode_error(b"\xff" * 10_000)) <= 200


def test_a_call_that_its_form_cannot_say_is_refused() -> None:
    with pytest.raises(ValueError, match="takes one query, not 2"):
        Call(Form.VERL_AGENT, ("a", "b"))
    with pytest.raises(ValueError, match="no scores"):
        Call(Form.ZEROSEARCH, ("a",), 3, True)
