"""Follows the leases, and writes into the book of sessions what they mean for each."""

import logging

from kvplane_services.errors import KvplaneError
from kvplane_services.lease.model import Lease, LeaseState
from kvplane_services.session.book import Entry, SessionBook
from kvplane_services.session.config import SessionConfig
from kvplane_services.session.history import (
    ended,
    knows_turn,
    retained,
    with_end,
    with_turn,
    without_lease,
)
from kvplane_services.session.keeper import Keeper
from kvplane_services.session.model import SessionState
from kvplane_services.store.ports import Feed, Removed, Reset, Synced, Upserted

_log = logging.getLogger(__name__)


class LeaseFollower:
    """Brings sessions in line with their leases, and does at a new lease what was hinted.

    Args:
        leases: All leases, and their changes.
        book: The sessions.
        keeper: Claims and releases new leases.
        config: Durations and bounds.

    """

    def __init__(
        self, *, leases: Feed[Lease], book: SessionBook, keeper: Keeper, config: SessionConfig
    ) -> None:
        self._leases = leases
        self._book = book
        self._keeper = keeper
        self._config = config

    async def run(self) -> None:
        """Follows the leases until cancelled."""
        # The full state comes by name. It is applied by grant, oldest first, so that turns are
        # in order.
        collected: dict[str, Lease] | None = {}
        first = True
        async for event in self._leases():
            match event:
                case Reset():
                    collected = {}
                case Upserted(key=key, value=lease):
                    if collected is not None:
                        collected[key] = lease
                    else:
                        await self._apply(lease)
                case Removed(key=key):
                    if collected is not None:
                        collected.pop(key, None)
                    else:
                        self._lose(f"leases/{key}")
                case Synced():
                    if collected is not None:
                        await self._apply_all(collected, first=first)
                        collected, first = None, False
            await self._book.flush_or_wait()

    async def _apply_all(self, leases: dict[str, Lease], *, first: bool) -> None:
        for lease in sorted(leases.values(), key=lambda lease: lease.fencing_token):
            await self._apply(lease, history=first)
        live = {lease.name for lease in leases.values() if lease.state is LeaseState.ACTIVE}
        for name in self._book.leases() - live:
            self._lose(name)

    async def _apply(self, lease: Lease, *, history: bool = False) -> None:
        """Takes a lease's state in; `history` tells of turns that ended before this plane."""
        entry = self._book.find(lease.session_key)
        if entry is None:
            live = lease.state is LeaseState.ACTIVE
            if not (live or history) or self._book.is_deleted(lease):
                return
            self._book.make_room()
            entry = self._book.add(lease.session_key, ttl=self._config.ttl)
        if lease.state is not LeaseState.ACTIVE:
            self._take_end(entry, lease, history=history)
            return
        await self._take_live(entry, lease)

    def _take_end(self, entry: Entry, lease: Lease, *, history: bool) -> None:
        if history and lease.state is LeaseState.ENDED:
            session = with_turn(entry.session, lease, max_turns=self._config.max_turns)
        else:
            session = with_end(entry.session, lease)
        if session.lease == lease.name:
            session = without_lease(session)
        self._book.write(entry, session)

    async def _take_live(self, entry: Entry, lease: Lease) -> None:
        new = not knows_turn(entry.session, lease)
        session = with_turn(entry.session, lease, max_turns=self._config.max_turns)
        if lease.fencing_token < entry.token:
            self._book.write(entry, session)
            return
        entry.token = lease.fencing_token
        if not new and session.state is SessionState.ENDED:
            # Its release is under way; the lease's end is still to be told.
            self._book.write(entry, session)
            return
        self._book.write(entry, retained(session, lease), used=new)
        if new and session.hints.final_turn:
            try:
                await self._keeper.release(entry)
            except KvplaneError as error:
                # The lease lapses by itself soon: nobody claims it.
                _log.warning("%s was not released: %s", lease.name, error.message)
            self._book.write(entry, ended(entry.session), used=True)
        elif new:
            await self._keeper.try_claim(entry)

    def _lose(self, lease: str) -> None:
        entry = self._book.holder_of(lease)
        if entry is not None:
            self._book.write(entry, without_lease(entry.session))
