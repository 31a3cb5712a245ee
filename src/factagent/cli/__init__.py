"""The command line: one file a command; each parses, calls and prints."""

from __future__ import annotations

from factagent.cli.app import main

__all__ = ["main"]
