"""What the server counts, in the text format of Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """The metrics of one server, in a registry of its own, so that several servers can live in one process."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter("factagent_requests", "Requests answered", ("path", "code"), registry=registry)
        self._by_label: dict[tuple[str, int], Counter] = {}
        self.request_seconds = Histogram(
            "factagent_request_seconds",
            "From the head of a search request to its reply",
            buckets=_SECONDS,
            registry=registry,
        )
        self.queue_queries = Gauge("factagent_queue_queries", "Queries that wait for the search", registry=registry)
        self.batch_queries = Histogram(
            "factagent_batch_queries", "Queries in one search", buckets=_BATCHES, registry=registry
        )
        self.search_seconds = Histogram(
            "factagent_search_seconds", "Duration of one search", buckets=_SECONDS, registry=registry
        )
        self.search_failures = Counter("factagent_search_failures", "Requests whose search failed", registry=registry)
        self.cache_hits = Counter("factagent_cache_hits", "Queries answered from the cache", registry=registry)
        self.cache_misses = Counter("factagent_cache_misses", "Queries that were searched for", registry=registry)

    def count(self, path: str, code: int) -> None:
        """Count one answered request."""
        key = (path, code)
        counter = self._by_label.get(key)
        if counter is None:
            # `labels` costs more than all else here.
            counter = self._by_label[key] = self._requests.labels(path, str(code))
        counter.inc()

    def text(self) -> bytes:
        """All metrics, as `/metrics` shows them."""
        return generate_latest(self._registry)
