"""`factagent parse`: replies of a model, read as actions."""

from __future__ import annotations

from factagent.protocols.actions import parse_action
from factagent.rows import read_rows, write_row
from factagent.types import Action, Answer, Assert, Search


def parse(file: str, /) -> None:
    """Read replies as actions, as strictly as an episode does.

    Reads {"text": str} a line and prints the action, or {"invalid": reason code, "detail": str}.

    Args:
        file: JSONL file (.gz and .zst too), or - for standard input.
    """
    for row in read_rows(file):
        write_row(action_row(parse_action(row.text("text"))))


def action_row(action: Action) -> dict[str, object]:
    """The JSON object that the offline tools print and read for an action."""
    match action:
        case Search(query):
            return {"action": "search", "query": query}
        case Assert(triples, summary):
            return {"action": "assert", "triples": [list(triple) for triple in triples], "summary": summary}
        case Answer(response):
            return {"action": "answer", "response": response}
        case _:
            return {"invalid": action.reason, "detail": action.detail}
