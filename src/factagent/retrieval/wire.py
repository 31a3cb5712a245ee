"""The wire protocols of retrieval servers, as pure functions from searches to bytes and back, for server and client.

    form            path           request                                     reply
    search-r1       /retrieve      {"queries": [..], "topk", "return_scores"}  {"result": [[item, ..], ..]}
    verl-agent      /retrieve      {"query": .., "topk", "return_scores"}      {"result": [[item, ..]]}
    research        /search        {"query": .., "top_n", "return_score"}      docs, or [docs, scores]
    research-batch  /batch_search  {"query": [..], "top_n", "return_score"}    [docs, ..], or [[docs, ..], [scores, ..]]
    zerosearch      /retrieve      {"query": .., "top_k"}                      [{"text"}, ..]

SkyRL speaks `verl-agent`; FlashRAG and MemSearcher speak `research`. A document (`docs` is a list of them) is `{"id",
"contents"}`; an item is `{"document", "score"}` with scores, and the document itself without.

Three forms share `/retrieve`: `queries` makes it `search-r1`; a `query` beside the key `top_k` is `zerosearch`, any
other `query` is `verl-agent`. A null or zero number of passages means the server's default, and so does an absent one,
except that an absent `top_n` is 10, as the `research` servers have it. Requests are read strictly: an unknown field is
an error, because a misspelt `topk` that silently means 3 would cost a training run.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import starmap
from typing import Any, NoReturn

import orjson

from factagent.data.contents import contents_of, split_contents
from factagent.errors import DataError
from factagent.http import FailureKind
from factagent.retrieval.base import RetrievalError
from factagent.types import Passage


class Form(StrEnum):
    """The form of a search on the wire; see the table of this module."""

    path: str
    """The path of the URL that takes this form."""
    takes_many: bool
    """True where one request holds any number of queries, false where it holds one."""
    fields: tuple[str, ...]
    """The names of the queries, of the number of passages, and of the wish for scores (where there is one)."""

    def __new__(cls, value: str, path: str, takes_many: bool, fields: tuple[str, ...]) -> Form:
        form = str.__new__(cls, value)
        form._value_, form.path, form.takes_many, form.fields = value, path, takes_many, fields
        return form

    SEARCH_R1 = "search-r1", "/retrieve", True, ("queries", "topk", "return_scores")
    VERL_AGENT = "verl-agent", "/retrieve", False, ("query", "topk", "return_scores")
    RESEARCH = "research", "/search", False, ("query", "top_n", "return_score")
    RESEARCH_BATCH = "research-batch", "/batch_search", True, ("query", "top_n", "return_score")
    ZEROSEARCH = "zerosearch", "/retrieve", False, ("query", "top_k")


@dataclass(frozen=True, slots=True)
class Call:
    """One search request. `top_k` None leaves the number of passages to the server.

    Raises:
        ValueError: several queries in a form that takes one, or scores from `zerosearch`, which has none.
    """

    form: Form
    queries: tuple[str, ...]
    top_k: int | None = None
    scores: bool = False

    def __post_init__(self) -> None:
        if not self.form.takes_many and len(self.queries) != 1:
            raise ValueError(f"the form {self.form} takes one query, not {len(self.queries)}")
        if self.scores and self.form is Form.ZEROSEARCH:
            raise ValueError("the form zerosearch has no scores")


class RequestError(DataError):
    """A request that the server refuses, with the HTTP status (4xx), a stable code and the field at fault."""

    def __init__(self, status: int, code: str, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.field = status, code, field


class ReplyError(RetrievalError):
    """A reply that does not answer its call: `kind` is `bad_json` or `bad_schema`, `problem` leaves out the URL."""

    def __init__(self, url: str, kind: FailureKind, problem: str) -> None:
        super().__init__(f"{url}: {problem}")
        self.kind, self.problem = kind, problem


def encode_request(call: Call) -> bytes:
    """The JSON body of a request, to post to `call.form.path`. Lone surrogates, which JSON cannot carry, become `?`."""
    values: list[object] = [list(call.queries) if call.form.takes_many else call.queries[0], call.top_k, call.scores]
    # Not strict: zerosearch has no third field.
    body = dict(zip(call.form.fields, values, strict=False))
    try:
        return orjson.dumps(body)
    except TypeError:
        valid = tuple(query.encode("utf-8", "replace").decode("utf-8") for query in call.queries)
        return encode_request(Call(call.form, valid, call.top_k, call.scores))


def decode_request(path: str, body: bytes) -> Call:
    """Read the body that came to `path` (`/retrieve`, `/search` or `/batch_search`).

    Raises:
        RequestError: the body is no JSON (400), or a field is missing, unknown or of a wrong type (422).
    """
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(400, "bad_json", f"the body is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise RequestError(422, "wrong_type", f"the body must be a JSON object, found {_shown(fields)}")
    form = _form_of(path, fields)
    text_field, count_field, *score_fields = form.fields
    for name in fields:
        if name not in form.fields:
            raise RequestError(422, "unknown_field", f"unknown; allowed are {', '.join(form.fields)}", name)
    queries = _queries(fields, text_field, form.takes_many)
    scores = bool(score_fields) and _flag(fields, score_fields[0])
    return Call(form, queries, _count(fields, count_field), scores)


def encode_reply(call: Call, results: Sequence[Sequence[Passage]]) -> bytes:
    """The JSON body of a reply: one result for each query of `call`, best passage first."""
    if call.form is Form.ZEROSEARCH:
        return orjson.dumps([{"text": contents_of(passage)} for passage in results[0]])
    documents: list[Any] = [[{"id": p.id, "contents": contents_of(p)} for p in passages] for passages in results]
    scores: list[Any] = [[passage.score for passage in passages] for passages in results]
    if call.form in (Form.SEARCH_R1, Form.VERL_AGENT):
        return orjson.dumps({"result": _with_scores(documents, scores) if call.scores else documents})
    if call.form is Form.RESEARCH:
        documents, scores = documents[0], scores[0]
    return orjson.dumps([documents, scores] if call.scores else documents)


def decode_reply(call: Call, body: bytes, url: str) -> list[tuple[Passage, ...]]:
    """Read the reply to `call`. Passages get 0 as score where the call asked for none, and as id a hash of the contents
    where the server gives none (ZeroSearch, and Search-R1's BM25 and online servers).

    Raises:
        ReplyError: not JSON, not the form of the call, another number of results than queries, more passages than
            asked for, or a score that is not finite; it names `url` and the field.
    """
    try:
        reply = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ReplyError(url, FailureKind.BAD_JSON, f"the reply is not JSON: {error}") from None
    return _Reply(url, call).passages(reply)


def encode_error(error: RequestError) -> bytes:
    """The JSON body of a refusal: `{"error": {"code", "message", "field"}}`."""
    return orjson.dumps({"error": {"code": error.code, "message": str(error), "field": error.field}})


def decode_error(body: bytes) -> str:
    """What a refusal says: our `code: message (field)`, else the beginning of whatever a foreign server sent."""
    try:
        error = orjson.loads(body)["error"]
        field = f" (field '{error['field']}')" if error["field"] is not None else ""
        return f"{error['code']}: {error['message']}{field}"
    except (orjson.JSONDecodeError, LookupError, TypeError):
        text = " ".join(body[:400].decode("utf-8", "replace").split())
        return text if len(text) <= 200 else text[:197] + "..."


@dataclass(frozen=True, slots=True)
class _Reply:
    """Walks through the reply to one call and keeps the place for errors."""

    url: str
    call: Call

    def passages(self, reply: object) -> list[tuple[Passage, ...]]:
        if self.call.form in (Form.SEARCH_R1, Form.VERL_AGENT):
            results = self._results("result", self._member("", reply, "result"), nested=True)
            return [tuple(starmap(self._item, items)) for items in results]
        nested = self.call.form is Form.RESEARCH_BATCH
        if not self.call.scores:
            results = self._results("", reply, nested)
            return [tuple(self._document(at, document, 0.0) for at, document in items) for items in results]
        pair = self._list("", reply)
        if len(pair) != 2:
            self._refuse("", "a list of two, documents and scores", pair)
        documents, scores = (self._results(f"[{i}]", part, nested) for i, part in enumerate(pair))
        return [self._scored(items, numbers) for items, numbers in zip(documents, scores, strict=True)]

    def _results(self, at: str, value: object, nested: bool) -> list[list[tuple[str, object]]]:
        """The items of each query with their places; `value` is the only result unless it is a list of results."""
        results = list(self._placed(at, value)) if nested else [(at, value)]
        if len(results) != len(self.call.queries):
            self._fail(at, f"holds {len(results)} results for {len(self.call.queries)} queries")
        placed = [self._placed(place, result) for place, result in results]
        for (place, _), items in zip(results, placed, strict=True):
            if self.call.top_k is not None and len(items) > self.call.top_k:
                self._fail(place, f"holds {len(items)} passages where {self.call.top_k} were asked for")
        return placed

    def _scored(self, documents: list[tuple[str, object]], scores: list[tuple[str, object]]) -> tuple[Passage, ...]:
        if len(documents) != len(scores):
            self._fail("[1]", f"holds {len(scores)} scores for {len(documents)} documents")
        numbers = starmap(self._score, scores)
        return tuple(self._document(*document, score) for document, score in zip(documents, numbers, strict=True))

    def _item(self, at: str, item: object) -> Passage:
        if not self.call.scores:
            return self._document(at, item, 0.0)
        document, score = self._member(at, item, "document"), self._member(at, item, "score")
        return self._document(f"{at}.document", document, self._score(f"{at}.score", score))

    def _document(self, at: str, document: object, score: float) -> Passage:
        name = "text" if self.call.form is Form.ZEROSEARCH else "contents"
        contents = self._member(at, document, name)
        if not isinstance(contents, str):
            self._refuse(f"{at}.{name}", "a string", contents)
        identifier = document.get("id") if isinstance(document, dict) else None
        if identifier is None:
            identifier = "sha256:" + hashlib.sha256(contents.encode()).hexdigest()[:16]
        if isinstance(identifier, bool) or not isinstance(identifier, str | int):
            self._refuse(f"{at}.id", "a string", identifier)
        return Passage(str(identifier), *split_contents(contents), score)

    def _score(self, at: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            self._refuse(at, "a finite number", value)
        return float(value)

    def _member(self, at: str, value: object, name: str) -> object:
        if not isinstance(value, dict):
            self._refuse(at, "an object", value)
        if name not in value:
            self._fail(f"{at}.{name}", "is missing")
        return value[name]

    def _placed(self, at: str, value: object) -> list[tuple[str, object]]:
        return [(f"{at}[{i}]", item) for i, item in enumerate(self._list(at, value))]

    def _list(self, at: str, value: object) -> list[object]:
        return value if isinstance(value, list) else self._refuse(at, "a list", value)

    def _refuse(self, at: str, wanted: str, value: object) -> NoReturn:
        self._fail(at, f"must be {wanted}, found {_shown(value)}")

    def _fail(self, at: str, problem: str) -> NoReturn:
        form = f"the server does not speak the form {self.call.form} of this call, or is broken"
        field = at.lstrip(".") or "(whole body)"
        raise ReplyError(self.url, FailureKind.BAD_SCHEMA, f"reply field '{field}' {problem}; {form}")


def _form_of(path: str, fields: dict[str, object]) -> Form:
    if path != Form.SEARCH_R1.path:
        return Form.RESEARCH if path == Form.RESEARCH.path else Form.RESEARCH_BATCH
    if "queries" in fields:
        return Form.SEARCH_R1
    if "query" not in fields:
        raise RequestError(422, "missing_field", "is missing; give 'queries' (a list) or 'query' (a string)", "queries")
    return Form.ZEROSEARCH if "top_k" in fields else Form.VERL_AGENT


def _queries(fields: dict[str, object], name: str, many: bool) -> tuple[str, ...]:
    if name not in fields:
        raise RequestError(422, "missing_field", "is missing", name)
    value = fields[name]
    if not isinstance(value, list if many else str):
        wanted = "a list of strings" if many else "a string"
        raise RequestError(422, "wrong_type", f"must be {wanted}, found {_shown(value)}", name)
    queries: list[object] = value if isinstance(value, list) else [value]
    for i, query in enumerate(queries):
        if not isinstance(query, str):
            raise RequestError(422, "wrong_type", f"must be a string, found {_shown(query)}", f"{name}[{i}]")
    return tuple(map(str, queries))


def _count(fields: dict[str, object], name: str) -> int | None:
    value = fields.get(name, 10 if name == "top_n" else None)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 3.0 is a whole number in JSON
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise RequestError(422, "wrong_type", f"must be a whole number from 0, found {_shown(value)}", name)
    return value or None


def _flag(fields: dict[str, object], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise RequestError(422, "wrong_type", f"must be true or false, found {_shown(value)}", name)
    return value


def _with_scores(documents: list[Any], scores: list[Any]) -> list[Any]:
    return [
        [{"document": document, "score": score} for document, score in zip(*pair, strict=True)]
        for pair in zip(documents, scores, strict=True)
    ]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
