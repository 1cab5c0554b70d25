"""What a slow reader is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kvplane_services.store.inbox import Batch, Inbox, News
from kvplane_services.store.model import Event, Removed, Reset, Synced, Upserted
from tests.support.clock import FakeClock


class Told:
    """A feed that tells what a test has it tell."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[Event[str]] = asyncio.Queue()
        self.clock = FakeClock()
        self.inbox = Inbox(feed=self, clock=self.clock)

    async def __call__(self) -> AsyncIterator[Event[str]]:
        while True:
            yield await self.events.get()

    async def tell(self, *events: Event[str]) -> None:
        for event in events:
            self.events.put_nowait(event)
        await self.clock.advance(0)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncIterator[Batch[str]]]:
        task = asyncio.create_task(self.inbox.run())
        try:
            yield self.inbox.batches()
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_everything_comes_first_and_at_once() -> None:
    """Not before it is complete, and without what is gone by then."""
    told = Told()
    async with told.reading() as batches:
        first = asyncio.ensure_future(anext(batches))
        await told.tell(Upserted("a", "1", 1), Upserted("b", "1", 2), Removed("b", 3))
        assert not first.done()
        await told.tell(Synced(4))

        assert await first == Batch({"a": News("1", 1)}, full=True, revision=4)


async def test_a_reader_that_was_busy_finds_the_newest() -> None:
    """Each key once, with its last value also if that is gone."""
    told = Told()
    async with told.reading() as batches:
        await told.tell(Upserted("a", "1", 1), Upserted("z", "1", 2), Synced(2))
        assert (await anext(batches)).full
        await told.tell(
            Upserted("a", "2", 3),
            Upserted("b", "1", 4),
            Upserted("a", "3", 5),
            Removed("b", 6),
            Removed("z", 7),
        )

        batch = await anext(batches)
        assert batch.news == {
            "a": News("3", 5),
            "b": News("1", 6, removed=True),
            "z": News(None, 7, removed=True),
        }
        assert not batch.full


async def test_a_feed_that_starts_over() -> None:
    """Everything comes again, whether or not the news before it were read."""
    told = Told()
    async with told.reading() as batches:
        await told.tell(Synced(1))
        assert await anext(batches) == Batch({}, full=True, revision=1)
        await told.tell(Upserted("a", "1", 2), Reset(), Upserted("b", "1", 1))
        following = asyncio.ensure_future(anext(batches))
        await told.clock.advance(0)
        assert not following.done()
        await told.tell(Synced(3))

        assert await following == Batch({"b": News("1", 1)}, full=True, revision=3)


async def test_bookmarks_are_no_news() -> None:
    """A reader is not woken where nothing changed."""
    told = Told()
    async with told.reading() as batches:
        await told.tell(Synced(1))
        await anext(batches)
        following = asyncio.ensure_future(anext(batches))
        await told.tell(Synced(2), Synced(3))
        assert not following.done()
        await told.tell(Upserted("a", "1", 4))

        assert (await following).revision == 3
