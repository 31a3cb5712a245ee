"""Evaluation: one runner and one scorer for every method."""
