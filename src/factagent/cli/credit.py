"""`factagent credit`: the FactAgent credit rule on groups from a file."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from factagent.credit.config import CreditConfig
from factagent.rows import read_rows, write_row


class Options(CreditConfig):
    """Every credit option as a flag; here the encoder defaults to the one that needs no model."""

    encoder: str = "exact"
    """How facts are compared: "exact" (normalised strings equal), "minilm", or a sentence-transformers model."""


def credit(file: str, /, *, options: Annotated[Options | None, Parameter(name="*")] = None) -> None:
    """Assign credit to every step of groups of trajectories.

    Reads one group a line: {"question", "golds": [str], "trajectories": [{"steps": [...]}]} with the steps
    {"action": "search", "query"}, {"action": "assert", "triples": [[s, r, o], ...], "summary"},
    {"action": "answer", "response"} and {"action": "invalid"}; a trajectory may have a "stop_reason", and the failures
    of infrastructure among them (retrieval_failed, policy_failed, timeout) leave the statistics.

    Prints {"baseline", "clusters", "trajectories"} for each. A step's process is the term that enters its advantage:
    advantage = outcome_advantage + process_weight * process.

    Args:
        file: JSONL file (.gz and .zst too), or - for standard input.
    """
    from factagent.credit.offline import credit_rows

    config = options or Options()
    for record in credit_rows(read_rows(file), config, config.load_encoder()):
        write_row(record)
