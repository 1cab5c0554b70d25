"""Follows the records of sessions that all replicas write."""

import asyncio

from kvplane_services.clock import Clock
from kvplane_services.session.book import SessionBook
from kvplane_services.session.keeper import Keeper
from kvplane_services.session.record import PackedRecord
from kvplane_services.session.saver import Saver
from kvplane_services.session.wishes import Wishes
from kvplane_services.store.ports import Feed, Removed, Reset, Synced, Upserted

# Records taken in before other tasks get their turn.
_AT_ONCE = 256


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
        self._records = records
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
        collected: dict[str, Upserted[PackedRecord]] | None = {}
        async for event in self._records():
            match event:
                case Reset():
                    collected = {}
                case Upserted(key=key):
                    if collected is not None:
                        collected[key] = event
                    else:
                        self._take(event)
                case Removed(key=key, revision=revision):
                    if collected is not None:
                        collected.pop(key, None)
                    else:
                        self._book.adopt(key, None, revision)
                        self._saver.note(key)
                case Synced():
                    if collected is not None:
                        await self._take_all(collected)
                        collected = None
                        self._loaded.set()

    def _take(self, event: Upserted[PackedRecord], *, anew: bool = False) -> None:
        self._book.adopt(event.key, event.value, event.revision, anew=anew)
        self._saver.note(event.key)
        if self._wishes.is_new(event.key):
            self._keeper.claim_soon(event.key)

    async def _take_all(self, events: dict[str, Upserted[PackedRecord]]) -> None:
        # The one written longest ago is the first to make room.
        in_order = sorted(events.values(), key=lambda event: event.revision)
        for number, event in enumerate(in_order):
            self._take(event, anew=True)
            if number % _AT_ONCE == 0:
                await self._clock.sleep(0)
        for name in self._book.names() - events.keys():
            # Sessions that were forgotten meanwhile come back for a while by this; those that
            # the store lost stay.
            self._book.lose(name)
            self._saver.note(name)
