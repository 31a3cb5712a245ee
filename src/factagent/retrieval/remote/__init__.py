"""Retrieval over the network: one server, several shards, replicas; asynchronous, and wrapped for synchronous callers.

RemoteRetriever      one server that speaks one of the protocols of `wire`
ReplicatedRetriever  servers of the same corpus: round robin, the next one where one fails
ShardedRetriever     servers of parts of a corpus: all are asked, results merged by score
SyncRetriever        any of these for callers without an event loop
check_ready          wait until a server answers a search
"""

from factagent.retrieval.remote.blocking import SyncRetriever
from factagent.retrieval.remote.client import PROTOCOLS, NetworkRetriever, RemoteRetriever, check_ready
from factagent.retrieval.remote.several import ReplicatedRetriever, ShardedRetriever
from factagent.retrieval.remote.transport import RemoteRetrievalError

__all__ = [
    "PROTOCOLS",
    "NetworkRetriever",
    "RemoteRetrievalError",
    "RemoteRetriever",
    "ReplicatedRetriever",
    "ShardedRetriever",
    "SyncRetriever",
    "check_ready",
]
