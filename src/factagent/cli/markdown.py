"""Printing the Markdown of reports."""

from __future__ import annotations

import sys


def print_markdown(text: str) -> None:
    """Print it rendered on a terminal, and as it is elsewhere."""
    if not sys.stdout.isatty():
        sys.stdout.write(text)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(text))
