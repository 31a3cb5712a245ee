"""FactAgent: search agents that get credit for every step."""
