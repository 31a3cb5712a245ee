"""FactAgent: search agents that get credit for every step."""

from __future__ import annotations

__version__ = "0.1.0"
