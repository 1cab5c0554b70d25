"""What sessions need as time passes: claims, ends of wishes, and being forgotten."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from kvplane_services.clock import Clock
from kvplane_services.errors import KvplaneError
from kvplane_services.session.book import SessionBook
from kvplane_services.session.changes import Changes
from kvplane_services.session.config import SessionConfig
from kvplane_services.session.follower import LeaseFollower
from kvplane_services.session.keeper import Keeper
from kvplane_services.session.record import SessionRecord
from kvplane_services.session.saver import Saver
from kvplane_services.session.shares import Shares
from kvplane_services.session.wishes import Wishes

_log = logging.getLogger(__name__)


class Upkeep:
    """Looks at intervals for what is due.

    Args:
        book: The sessions.
        saver: Writes down what waits, and forgets.
        keeper: Claims and releases leases.
        follower: Knows of leases that vanished.
        changes: Takes wishes that are over out of their records.
        wishes: Until when each session is to be kept.
        shares: Which sessions this replica looks after.
        clock: Time.
        config: Durations and bounds.

    """

    def __init__(
        self,
        *,
        book: SessionBook,
        saver: Saver,
        keeper: Keeper,
        follower: LeaseFollower,
        changes: Changes,
        wishes: Wishes,
        shares: Shares,
        clock: Clock,
        config: SessionConfig,
    ) -> None:
        self._book = book
        self._saver = saver
        self._keeper = keeper
        self._follower = follower
        self._changes = changes
        self._wishes = wishes
        self._shares = shares
        self._clock = clock
        self._config = config

    def review(self) -> None:
        """Looks anew at what this replica looks after: another one has come or gone."""
        self._saver.review()
        self._keeper.review()

    async def run(self) -> None:
        """Looks until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._claim_forever())
            tasks.create_task(self._sweep_forever())

    async def _claim_forever(self) -> None:
        while True:
            await self._clock.sleep(self._config.claim_interval)
            over = self._wishes.over(self._clock.now())
            await self._end_wishes([name for name in over if self._shares.mine(name)])
            self._keeper.review()

    async def _end_wishes(self, names: Sequence[str]) -> None:
        failures: list[str] = []
        for name in names:
            try:
                await self._end_wish(name)
            except KvplaneError as error:
                failures.append(f"{name} is shown as kept for a while longer: {error.message}")
        if failures:
            _log.warning("%s (and %d more)", failures[0], len(failures) - 1)

    async def _end_wish(self, name: str) -> None:
        async def decide(record: SessionRecord | None) -> SessionRecord | None:
            if record is None or self._wishes.remaining(name, self._clock.now()) > 0:
                return None  # There is a new wish.
            return record._replace(hints=replace(record.hints, keep_for=0.0))

        await self._changes.make(name, decide)

    async def _sweep_forever(self) -> None:
        while True:
            await self._clock.sleep(self._config.sweep_interval)
            for entry in self._book.due():
                if self._shares.mine(entry.name):
                    self._saver.forget(entry)
            # Of those that other replicas added.
            self._saver.make_room(0)
            self._follower.sweep()
            self._saver.review()
