"""The retrieval server: `app` answers, `batching` searches, `limits` refuses, `metrics` counts, `run` starts it."""
