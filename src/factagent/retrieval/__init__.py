"""Retrieval: passages for queries. `base` holds what every retriever promises; one file a backend."""
