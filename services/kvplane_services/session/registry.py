"""The session registry: which conversation holds which lease, and what its client hinted.

It follows the leases, in this process or in another, and never decides what an engine keeps:
hints become claims and releases at the lease manager.

Not promised: that it has seen the very latest lease. It lags its feed by a moment, and reads
tell what it has seen.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

from kvplane_services.clock import Clock
from kvplane_services.errors import AlreadyExists, Conflict, InvalidRequest, NotFound, Saturated
from kvplane_services.lease.model import Lease, RenewalOutcome
from kvplane_services.lease.ports import LeaseControl
from kvplane_services.session.book import Entry, SessionBook
from kvplane_services.session.config import SessionConfig
from kvplane_services.session.follower import LeaseFollower
from kvplane_services.session.history import ended, etag_of
from kvplane_services.session.keeper import Keeper
from kvplane_services.session.model import Session, SessionHints, SessionKey
from kvplane_services.store.feeds import TableFeed
from kvplane_services.store.journal import Journal
from kvplane_services.store.paging import Page, PageRequest
from kvplane_services.store.ports import Event, Feed, Table
from kvplane_services.store.requests import RequestMemory


class SessionRegistry:
    """Follows leases, remembers sessions, and passes hints on.

    Args:
        table: Where sessions are published.
        leases: All leases, and their changes.
        control: The lease manager.
        clock: Time.
        config: Durations and bounds.

    """

    def __init__(
        self,
        *,
        table: Table[Session],
        leases: Feed[Lease],
        control: LeaseControl,
        clock: Clock,
        config: SessionConfig | None = None,
    ) -> None:
        self._table = table
        self._clock = clock
        self._config = config or SessionConfig()
        self._book = SessionBook(journal=Journal(table=table), clock=clock, config=self._config)
        self._keeper = Keeper(control=control, clock=clock, config=self._config)
        self._follower = LeaseFollower(
            leases=leases, book=self._book, keeper=self._keeper, config=self._config
        )
        self._requests: RequestMemory[tuple[Session, float]] = RequestMemory()

    # -- Callers -----------------------------------------------------------------------------

    async def create(
        self,
        key: SessionKey,
        *,
        hints: SessionHints | None = None,
        ttl: float = 0.0,
        request_id: str = "",
    ) -> tuple[Session, float]:
        """Creates a session before its first turn; returns it and the granted idle time.

        Raises:
            InvalidRequest: The key, a hint or the request id is malformed.
            AlreadyExists: There is a session of that key.
            Saturated: As many sessions as can be remembered have live leases.
            Unavailable: The store cannot be reached.

        """
        key.validate()
        if hints is not None:
            _check_keep(hints.keep_for)
        asked = (key, hints, ttl)
        first = self._requests.find(request_id, asked, self._clock.now())
        if first is not None:
            return first
        if self._book.find(key) is not None:
            raise AlreadyExists(f"{key.name} exists: update or touch it", session=key.name)
        if not self._book.make_room():
            raise Saturated(
                f"all {self._config.max_sessions} sessions have live leases",
                retry_after=self._config.claim_interval,
            )
        granted = self._config.clamp_ttl(ttl)
        entry = self._book.add(key, ttl=granted)
        if hints is not None:
            self._set_hints(entry, keep_for=hints.keep_for, final_turn=hints.final_turn)
        answer = (self._book.view(entry), granted)
        self._requests.remember(request_id, asked, answer, self._clock.now())
        await self._book.flush()
        return answer

    def get(self, key: SessionKey) -> Session:
        """The session. Raises NotFound."""
        return self._book.view(self._entry(key))

    async def list(
        self, page: PageRequest, *, tenant: str = "", model: str = "", engine: str = ""
    ) -> Page[Session]:
        """Sessions by name; `engine` is a full name. Raises InvalidRequest, Unavailable."""
        revision = await self._table.revision()
        entries = (
            (name, entry)
            for name, entry in self._book.entries()
            if tenant in ("", entry.session.key.tenant)
            and model in ("", entry.session.key.model)
            and engine in ("", entry.session.engine)
        )
        return page.take(
            entries,
            key=lambda named: named[0],
            filters=("sessions", tenant, model, engine),
            revision=revision,
        ).map(lambda named: self._book.view(named[1]))

    async def update(
        self,
        key: SessionKey,
        *,
        keep_for: float | None = None,
        final_turn: bool | None = None,
        etag: str = "",
    ) -> Session:
        """Sets those of a session's hints that are given.

        A wish to be kept counts from now on, and zero takes it back. With `final_turn` the lease
        that the running or next turn leaves is released at once; one that is live already is no
        longer claimed for the session and lapses.

        Raises:
            InvalidRequest: A hint is malformed.
            NotFound: There is no such session.
            Conflict: `etag` is not that of the session.
            Unavailable: The lease manager or the store cannot be reached.

        """
        entry = self._entry(key)
        _check_etag(entry, etag)
        self._set_hints(entry, keep_for=keep_for, final_turn=final_turn)
        if entry.session.hints.keep_for == 0:
            await self._keeper.drop(entry)
        elif keep_for is not None:
            await self._keeper.claim(entry)
        await self._book.flush()
        return self._book.view(entry)

    async def delete(self, key: SessionKey, *, etag: str = "") -> None:
        """Releases a session's lease and forgets the session. Does nothing if there is none.

        Raises:
            Conflict: `etag` is not that of the session.
            Unavailable: The lease manager or the store cannot be reached.

        """
        entry = self._book.find(key)
        if entry is None:
            return
        _check_etag(entry, etag)
        await self._keeper.release(entry)
        self._book.remove(key, deleted=True)
        await self._book.flush()

    async def touch(self, key: SessionKey, keep_for: float = 0.0) -> tuple[Session, float]:
        """Keeps a session's lease claimed for a while, and the leases that follow it.

        Returns:
            The session and the granted time in seconds; zero when no lease is live. The wish
            stands all the same for a lease that is granted before it is over.

        Raises:
            InvalidRequest: `keep_for` is negative.
            NotFound: There is no such session.
            Unavailable: The lease manager or the store cannot be reached.

        """
        _check_keep(keep_for)
        entry = self._entry(key)
        granted = self._config.clamp_keep(keep_for)
        self._set_hints(entry, keep_for=granted)
        outcome = await self._keeper.claim(entry)
        await self._book.flush()
        kept = granted if outcome is RenewalOutcome.RENEWED else 0.0
        return self._book.view(entry), kept

    async def end(self, key: SessionKey) -> Session:
        """Releases a session's lease and marks the session ended.

        Raises:
            NotFound: There is no such session.
            Unavailable: The lease manager or the store cannot be reached.

        """
        entry = self._entry(key)
        await self._keeper.release(entry)
        self._book.write(entry, ended(entry.session), used=True)
        await self._book.flush()
        return self._book.view(entry)

    def feed(self) -> Feed[Session]:
        """All sessions by name, then every change."""
        return TableFeed(table=self._table, clock=self._clock)

    def watch(self, *, after: int = 0) -> AsyncIterator[Event[Session]]:
        """See `Table.watch`."""
        return self._table.watch(after=after)

    # -- Loops -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follows leases, claims what is kept, and forgets what is idle, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follower.run())
            tasks.create_task(self._claim_forever())
            tasks.create_task(self._sweep_forever())

    async def _claim_kept(self) -> None:
        """Claims the leases of all sessions that are kept, and ends wishes that are over."""
        for entry in self._keeper.expired():
            hints = replace(entry.session.hints, keep_for=0.0)
            self._book.write(entry, replace(entry.session, hints=hints))
        for entry in self._keeper.kept():
            await self._keeper.try_claim(entry)

    async def _claim_forever(self) -> None:
        while True:
            await self._clock.sleep(self._config.claim_interval)
            await self._claim_kept()
            await self._book.flush_or_wait()

    async def _sweep_forever(self) -> None:
        while True:
            await self._clock.sleep(self._config.sweep_interval)
            self._book.sweep()
            await self._book.flush_or_wait()

    # -- Hints -------------------------------------------------------------------------------

    def _set_hints(
        self, entry: Entry, *, keep_for: float | None = None, final_turn: bool | None = None
    ) -> None:
        hints = entry.session.hints
        if keep_for is not None:
            _check_keep(keep_for)
            granted = self._config.clamp_keep(keep_for) if keep_for else 0.0
            hints = replace(hints, keep_for=granted)
            if granted:
                self._keeper.keep(entry, granted)
        if final_turn is not None:
            hints = replace(hints, final_turn=final_turn)
            if final_turn:
                hints = replace(hints, keep_for=0.0)
        self._book.write(entry, replace(entry.session, hints=hints), used=True)

    def _entry(self, key: SessionKey) -> Entry:
        entry = self._book.find(key)
        if entry is None:
            raise NotFound(
                f"there is no {key.name}: it is created by its first turn, or by CreateSession",
                session=key.name,
            )
        return entry


def _check_etag(entry: Entry, etag: str) -> None:
    if etag and etag != etag_of(entry.session):
        raise Conflict(
            f"{entry.session.name} was changed since its etag was read: read it again and retry",
            session=entry.session.name,
        )


def _check_keep(keep_for: float) -> None:
    if keep_for < 0:
        raise InvalidRequest("keep_for must not be negative", field="hints.keep_for")
