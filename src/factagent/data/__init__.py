"""Corpora and question sets: one file format for real data and for the built-in world."""
