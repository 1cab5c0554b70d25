"""Follows the records of sessions that all replicas write."""

import asyncio

from kvplane_services.clock import Clock
from kvplane_services.session.book import SessionBook
from kvplane_services.session.keeper import Keeper
from kvplane_services.session.record import PackedRecord
from kvplane_services.session.saver import Saver
from kvplane_services.session.wishes import Wishes
from kvplane_services.store.inbox import Inbox, News
from kvplane_services.store.ports import Feed

# Records taken in before other tasks get their turn.
_AT_ONCE = 64


class RecordFollower:
    """Takes what the store has into the book.

    Args:
        records: All records by name, and their changes.
        book: The sessions.
        saver: Writes down what is missing from them.
        keeper: Claims leases of sessions that are to be kept.
        wishes: Until when each session is to be kept.
        clock: Time.

    """

    def __init__(
        self,
        *,
        records: Feed[PackedRecord],
        book: SessionBook,
        saver: Saver,
        keeper: Keeper,
        wishes: Wishes,
        clock: Clock,
    ) -> None:
        self._inbox = Inbox(feed=records, clock=clock)
        self._book = book
        self._saver = saver
        self._keeper = keeper
        self._wishes = wishes
        self._clock = clock
        self._loaded = asyncio.Event()

    async def loaded(self) -> None:
        """Returns once everything that the store had was taken in."""
        await self._loaded.wait()

    async def run(self) -> None:
        """Follows the records until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._inbox.run())
            tasks.create_task(self._take_batches())

    async def _take_batches(self) -> None:
        async for batch in self._inbox.batches():
            if batch.full:
                self._book.start_over()
            # Of a full state, the one written longest ago is the first to make room.
            news = sorted(batch.news.items(), key=lambda item: item[1].revision)
            for number, (name, one) in enumerate(news, start=1):
                self._take(name, one, anew=batch.full)
                if number % _AT_ONCE == 0:
                    await self._clock.sleep(0)
            if batch.full:
                for name in self._book.names() - batch.news.keys():
                    # Sessions that were forgotten meanwhile come back for a while by this; those
                    # that the store lost stay.
                    self._book.lose(name)
                    self._saver.note(name)
                self._loaded.set()

    def _take(self, name: str, news: News[PackedRecord], *, anew: bool) -> None:
        packed = None if news.removed else news.value
        self._book.adopt(name, packed, news.revision, anew=anew)
        self._saver.note(name)
        if self._wishes.is_new(name):
            self._keeper.claim_soon(name)
