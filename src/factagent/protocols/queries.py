"""Queries as free text, as the policies of protocols in tags write them."""

from __future__ import annotations

from factagent.protocols.actions import DEFAULT_LIMITS
from factagent.protocols.untrusted import plain_line
from factagent.types import Invalid, Search

EMPTY_FIELD = "empty_field"
FIELD_TOO_LONG = "field_too_long"


def read_query(text: str) -> Search | Invalid:
    """The search for a text, made one line of visible characters: total over any string.

    An empty query, and one of more characters than any parser here takes, is invalid (the originals send both).
    """
    query = plain_line(text)
    if not query:
        return Invalid(EMPTY_FIELD, "the query is empty")
    if len(query) > DEFAULT_LIMITS.field_chars:
        return Invalid(
            FIELD_TOO_LONG, f"the query has {len(query)} characters; at most {DEFAULT_LIMITS.field_chars} are allowed"
        )
    return Search(query)
