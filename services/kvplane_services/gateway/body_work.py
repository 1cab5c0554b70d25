"""Does what takes time in proportion to a request's body, beside the event loop if that is long."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self, TypeVar

_Made = TypeVar("_Made")

# Bytes. The worst body of this size, of nothing but empty messages, takes the loop 25 ms; moving
# one to a thread costs 0.1 ms.
_LARGE = 64 * 1024
# Threads share one interpreter lock, so that more of them would not finish sooner, and would
# keep the loop waiting for the lock longer. The second one lets others overtake a huge body.
_THREADS = 2


class BodyWork:
    """Runs functions over bodies. Use it as an async context manager.

    Work on large bodies waits for one of two threads. Whoever stops waiting takes work back that
    has not begun; what has begun ends by itself, and nobody hears of it.
    """

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None

    async def __aenter__(self) -> Self:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="kvplane-body")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(self, work: Callable[[], _Made], *, size: int) -> _Made:
        """What `work` makes of a body of `size` bytes. Raises what `work` raises."""
        if size <= _LARGE:
            return work()
        if self._threads is None:
            raise RuntimeError("BodyWork is used outside of its context")
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
