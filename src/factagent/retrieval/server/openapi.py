"""The API document, `/openapi.json`: OpenAPI 3.1, with the limits that the server really has."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from factagent.retrieval.server.limits import Limits

Schema = dict[str, Any]

_SCORE = {"type": "number", "description": "The retriever's, higher is better."}
_REASONS = {
    400: "The body is not JSON.",
    408: "The body came too slowly.",
    413: "The body is too large.",
    422: "A field is missing, unknown, of a wrong type, or beyond a limit; `error.field` names it.",
    500: "The search failed; the reason is in the server's log.",
}


def document(limits: Limits, top_k: int, *, token: bool) -> Schema:
    """The API document of a server with these limits and this default of passages; `token`: it asks for one."""
    query = {
        "type": "string",
        "maxLength": limits.query_bytes,
        "description": f"At most {limits.query_bytes} bytes of UTF-8.",
    }
    count = {"type": ["integer", "null"], "minimum": 0, "maximum": limits.top_k}
    count["description"] = f"Passages for each query; null and 0 mean {top_k}."
    flag = {"type": "boolean", "default": False}
    text = {"type": "string"}
    doc = _object({"id": text, "contents": text}, "id", "contents")
    item = _object({"document": doc, "score": _SCORE}, "document", "score")
    queries = {"type": "array", "items": query, "maxItems": limits.queries}
    paths = {
        "/retrieve": _search(
            "The forms of Search-R1 (`queries`), verl-agent (`query`) and ZeroSearch (`query` beside `top_k`).",
            _one_of(
                _object({"queries": queries, "topk": count, "return_scores": flag}, "queries"),
                _object({"query": query, "topk": count, "return_scores": flag}, "query"),
                _object({"query": query, "top_k": count}, "query", "top_k"),
            ),
            _any_of(
                _object({"result": _list(_list(doc))}, "result"),
                _object({"result": _list(_list(item))}, "result"),
                _list(_object({"text": text}, "text")),
            ),
        ),
        "/search": _search(
            "The form of ReSearch, FlashRAG and MemSearcher; an absent `top_n` means 10.",
            _object({"query": query, "top_n": count, "return_score": flag}, "query"),
            _any_of(_list(doc), _pair(_list(doc), _list(_SCORE))),
        ),
        "/batch_search": _search(
            "The same for several queries.",
            _object({"query": queries, "top_n": count, "return_score": flag}, "query"),
            _any_of(_list(_list(doc)), _pair(_list(_list(doc)), _list(_list(_SCORE)))),
        ),
        "/health": _get("The process is alive.", {"200": _status("alive")}, open_=True),
        "/ready": _get(
            "The index is loaded and the queue is not full.", {"200": _status("ready"), "503": _busy()}, open_=True
        ),
        "/metrics": _get("Metrics in the text format of Prometheus.", {"200": _answer("Metrics.", "text/plain")}),
        "/openapi.json": _get("This document.", {"200": _answer("The document.", schema={"type": "object"})}),
    }
    info = {
        "title": "FactAgent retrieval",
        "version": version("factagent"),
        "description": "Passages for queries, best first.",
    }
    result: Schema = {"openapi": "3.1.0", "info": info, "paths": paths}
    return _with_token(result) if token else result


def _with_token(api: Schema) -> Schema:
    api["components"] = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
    for operation in (operation for methods in api["paths"].values() for operation in methods.values()):
        if operation.get("security") is None:
            operation["security"] = [{"token": []}]
            operation["responses"]["401"] = _answer("The token is missing or wrong.", schema=_error())
    return api


def _search(summary: str, request: Schema, reply: Schema) -> Schema:
    responses = {str(status): _answer(reason, schema=_error()) for status, reason in _REASONS.items()}
    responses |= {"200": _answer("One result for each query, in order.", schema=reply), "503": _busy()}
    body = {"required": True, "content": {"application/json": {"schema": request}}}
    return {"post": {"summary": summary, "requestBody": body, "responses": responses}}


def _get(summary: str, responses: Schema, *, open_: bool = False) -> Schema:
    operation = {"summary": summary, "responses": responses}
    return {"get": operation | ({"security": []} if open_ else {})}


def _answer(description: str, media_type: str = "application/json", schema: Schema | None = None) -> Schema:
    return {"description": description, "content": {media_type: {"schema": schema or {"type": "string"}}}}


def _busy() -> Schema:
    header = {"Retry-After": {"required": True, "schema": {"type": "integer"}, "description": "Seconds."}}
    return _answer("Loading, stopping, or too many queries wait.", schema=_error()) | {"headers": header}


def _status(word: str) -> Schema:
    return _answer(f"It is {word}.", schema=_object({"status": {"const": word}}, "status"))


def _error() -> Schema:
    names = {"code": {"type": "string"}, "message": {"type": "string"}, "field": {"type": ["string", "null"]}}
    return _object({"error": _object(names, *names)}, "error")


def _object(properties: Schema, *required: str) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _pair(*items: Schema) -> Schema:
    return {"type": "array", "items": _any_of(*items), "minItems": len(items), "maxItems": len(items)}


def _one_of(*schemas: Schema) -> Schema:
    return {"oneOf": list(schemas)}


def _any_of(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}
