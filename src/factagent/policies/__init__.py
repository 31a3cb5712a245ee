"""Policies: scripted, local transformers, endpoints."""
