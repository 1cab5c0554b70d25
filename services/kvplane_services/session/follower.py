"""Follows the leases, and takes into the book of sessions what they mean for each."""

import asyncio
from collections.abc import Mapping

from kvplane_services.clock import Clock
from kvplane_services.lease.model import Lease, LeaseState
from kvplane_services.session.book import SessionBook
from kvplane_services.session.config import SessionConfig
from kvplane_services.session.history import Missed
from kvplane_services.session.keeper import Keeper
from kvplane_services.session.saver import Saver
from kvplane_services.store.inbox import Inbox, News
from kvplane_services.store.ports import Feed

# Leases taken in before other tasks get their turn.
_AT_ONCE = 64


class LeaseFollower:
    """Brings sessions in line with their leases, and has done at a new lease what was hinted.

    Args:
        leases: All leases, and their changes.
        book: The sessions.
        saver: Writes them down.
        keeper: Claims and releases leases.
        clock: Time.
        config: Durations and bounds.

    """

    def __init__(
        self,
        *,
        leases: Feed[Lease],
        book: SessionBook,
        saver: Saver,
        keeper: Keeper,
        clock: Clock,
        config: SessionConfig,
    ) -> None:
        self._inbox = Inbox(feed=leases, clock=clock)
        self._book = book
        self._saver = saver
        self._keeper = keeper
        self._clock = clock
        self._config = config
        # Live leases that vanished without an end, and since when.
        self._missing: dict[str, float] = {}
        # Revision up to which the leases were seen.
        self._seen = 0

    async def run(self) -> None:
        """Follows the leases until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._inbox.run())
            tasks.create_task(self._take_batches())

    def sweep(self) -> None:
        """Gives leases up that vanished and did not come back."""
        longest = self._clock.now() - self._config.lost_grace
        for lease_id, since in tuple(self._missing.items()):
            entry = self._book.holder_of(lease_id)
            if entry is None:
                del self._missing[lease_id]
            elif since <= longest:
                del self._missing[lease_id]
                self._book.take(entry.name, Missed(lease_id))
                self._saver.note(entry.name)

    async def _take_batches(self) -> None:
        async for batch in self._inbox.batches():
            news = list(batch.news.items())
            if batch.full:
                # The full state comes by name. It is taken in by grant, oldest first, so that
                # turns are in order.
                news.sort(key=lambda item: _token(item[1]))
            for number, (lease_id, one) in enumerate(news, start=1):
                if one.value is not None:
                    self._take(one.value, one.revision)
                if one.removed:
                    self._miss(lease_id)
                if number % _AT_ONCE == 0:
                    await self._clock.sleep(0)
            if batch.full:
                for lease_id in self._book.leases() - _live(batch.news):
                    self._miss(lease_id)
            latest = max((one.revision for _, one in news), default=0)
            self._seen = max(self._seen, batch.revision, latest)

    def _take(self, lease: Lease, revision: int) -> None:
        name = lease.session_key.name
        if self._book.find(name) is None:
            if lease.state is LeaseState.ENDED and revision <= self._seen:
                return  # Its session was there, and is forgotten.
            self._saver.make_room()
        taken = self._book.take(name, lease)
        self._missing.pop(lease.lease_id, None)
        if lease.state is not LeaseState.ACTIVE:
            self._keeper.released(lease.lease_id)
        elif taken.over:
            self._keeper.release_soon(name, lease)
        elif taken.final:
            self._keeper.tell_final_soon(name, lease)
        elif taken.new_turn:
            self._keeper.claim_soon(name)
        self._saver.note(name)

    def _miss(self, lease_id: str) -> None:
        self._keeper.released(lease_id)
        if self._book.holder_of(lease_id) is not None:
            self._missing.setdefault(lease_id, self._clock.now())


def _token(news: News[Lease]) -> int:
    return 0 if news.value is None else news.value.fencing_token


def _live(news: Mapping[str, News[Lease]]) -> set[str]:
    values = (one.value for one in news.values() if one.value is not None)
    return {lease.lease_id for lease in values if lease.state is LeaseState.ACTIVE}
