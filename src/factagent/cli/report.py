"""`factagent report`: one HTML file about one or several runs."""

from __future__ import annotations

from pathlib import Path


def report(*runs: Path, out: Path | None = None) -> None:
    """Write one self-contained HTML file: scores, learning curves, costs, and one group from facts to rewards.

    Args:
        runs: Run directories; figures overlay them in this order.
        out: The file to write (default: report.html in the first run).
    """
    from factagent.analysis.report import write_report

    print(write_report(runs, out))
