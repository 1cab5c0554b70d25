"""The newest of what a feed tells, for a reader that may be slower than the feed for a while."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from kvplane_services.clock import Clock
from kvplane_services.store.model import Removed, Reset, Synced, Upserted
from kvplane_services.store.ports import Feed

T = TypeVar("T")

# Events taken in before other tasks get their turn.
_AT_ONCE = 64


class News(NamedTuple, Generic[T]):
    """What became of a key since it was last looked at.

    Attributes:
        value: What it held last; None if that is not known.
        revision: Revision of the last event.
        removed: Whether that is gone.

    """

    value: T | None
    revision: int
    removed: bool = False


@dataclass(frozen=True, slots=True)
class Batch(Generic[T]):
    """News by key.

    Attributes:
        news: In the order in which their keys were first told of.
        full: Whether they are everything that there is.
        revision: Everything up to it was told.

    """

    news: Mapping[str, News[T]]
    full: bool
    revision: int


class Inbox(Generic[T]):
    """Reads a feed as fast as it tells, and hands out what is new, each key once a batch.

    So a burst is never more than there are keys, and a reader that is busy with one batch finds
    the newest state in the next.

    Args:
        feed: What is read.
        clock: Gives others their turn.

    """

    def __init__(self, *, feed: Feed[T], clock: Clock) -> None:
        self._feed = feed
        self._clock = clock
        self._news: dict[str, News[T]] = {}
        self._full = True
        # Whether the full state is still on its way.
        self._partial = True
        self._revision = 0
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Reads until cancelled."""
        count = 0
        async for event in self._feed():
            match event:
                case Reset():
                    self._news = {}
                    self._full = self._partial = True
                case Upserted(key=key, value=value, revision=revision):
                    self._news[key] = News(value, revision)
                case Removed(key=key, revision=revision):
                    before = self._news.get(key)
                    if not self._full:
                        last = before.value if before else None
                        self._news[key] = News(last, revision, removed=True)
                    elif before:
                        del self._news[key]
                case Synced(revision=revision):
                    self._partial = False
                    self._revision = revision
            if not self._partial:
                self._wake.set()
            count += 1
            if count % _AT_ONCE == 0:
                await self._clock.sleep(0)

    async def batches(self) -> AsyncIterator[Batch[T]]:
        """Everything that there is, then what is new; after trouble, everything again."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._partial:
                continue  # It started over since.
            news, self._news = self._news, {}
            full, self._full = self._full, False
            if news or full:
                yield Batch(news, full, self._revision)
