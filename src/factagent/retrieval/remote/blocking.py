"""A network retriever for callers without an event loop: the lock-step driver, training, a script."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import weakref
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Self, TypeVar

from factagent.retrieval.remote.client import NetworkRetriever
from factagent.types import Passage

Result = TypeVar("Result")

_CLOSING_S = 5.0


class SyncRetriever:
    """A `Retriever` over a network retriever, which it owns: searches run on an event loop in a thread of its own.

    Any thread may search, several at once. Close it with `with` or `close`; what is still searching then ends with a
    `RuntimeError`. One that is forgotten is closed when it is collected, or at the end of the process.

    Args:
        retriever: a fresh one, which no event loop has used.
    """

    def __init__(self, retriever: NetworkRetriever) -> None:
        self._retriever = retriever
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, name="remote retrieval", daemon=True)
        thread.start()
        self._close = weakref.finalize(self, _shut_down, retriever, self._loop, thread)

    def __repr__(self) -> str:
        return f"SyncRetriever({self._retriever!r})"

    def search(self, queries: Sequence[str], top_k: int) -> list[tuple[Passage, ...]]:
        """Return the best passages of each query.

        Raises:
            RemoteRetrievalError: the search failed within its tries and budget.
            ValueError: `top_k` is below 1.
            RuntimeError: it is closed.
        """
        return self._wait(self._retriever.search(queries, top_k))

    def ready(self, within_s: float = 60.0) -> None:
        """Wait until searches are answered.

        Raises:
            RemoteRetrievalError: they are not within that many seconds.
        """
        self._wait(self._retriever.ready(within_s))

    def close(self) -> None:
        """Close the connections and end the thread; a second time does nothing."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _wait(self, work: Coroutine[object, object, Result]) -> Result:
        if not self._close.alive:
            work.close()
            raise RuntimeError(f"{self!r} is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise RuntimeError(f"{self!r} was closed during a search") from None
        finally:
            future.cancel()  # for Ctrl-C, which leaves result() early; nothing where the work is done


def _shut_down(retriever: NetworkRetriever, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    if threading.current_thread() is thread:
        # Collected by chance in the loop's own thread, which cannot wait for itself.
        threading.Thread(target=_shut_down, args=(retriever, loop, thread), daemon=True).start()
        return
    asyncio.run_coroutine_threadsafe(_end(retriever), loop).result(_CLOSING_S)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(_CLOSING_S)
    loop.close()


async def _end(retriever: NetworkRetriever) -> None:
    """Cancel the searches that are under way, then close."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await retriever.aclose()
