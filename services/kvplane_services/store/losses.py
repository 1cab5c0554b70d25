"""Anchors that were lost, told to everyone who reads of them."""

import asyncio
from collections.abc import AsyncIterator


class Losses:
    """Each reader is told of all losses from its call of `read` on; the first one, of those before.

    Several parts of a process keep anchors, and each looks out for its own.
    """

    def __init__(self) -> None:
        self._readers: set[asyncio.Queue[str]] = set()
        self._unread: list[str] = []

    def report(self, anchor: str) -> None:
        """Tells that an anchor was lost."""
        if not self._readers:
            self._unread.append(anchor)
        for reader in self._readers:
            reader.put_nowait(anchor)

    def read(self) -> AsyncIterator[str]:
        """Anchors as they are lost."""
        queue: asyncio.Queue[str] = asyncio.Queue()
        for anchor in self._unread:
            queue.put_nowait(anchor)
        self._unread.clear()
        self._readers.add(queue)
        return self._told(queue)

    async def _told(self, queue: asyncio.Queue[str]) -> AsyncIterator[str]:
        try:
            while True:
                yield await queue.get()
        finally:
            self._readers.discard(queue)
