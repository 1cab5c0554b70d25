"""The session registry: which conversation holds which lease, and what its client hinted.

It follows the leases, in this process or in another, and never decides what an engine keeps:
hints become claims and releases at the lease manager. Any replica answers for any session; what
one writes, the others see by the store.

Promised:
- A session that was ended or deleted is not opened again by what it was ended over, whatever
  leases follow on that.
- A turn is in the history once, also if its lease ended before anybody saw it live.
- A wish to be kept outlives the replica that took it.

Not promised:
- That it has seen the very latest lease, or another replica's latest write. It lags both by a
  moment, and reads tell what it has seen.
"""

from collections.abc import AsyncIterator, Callable
from urllib.parse import quote

from kvplane_services.clock import Clock
from kvplane_services.errors import AlreadyExists, Conflict, NotFound, Saturated
from kvplane_services.lease.model import Lease, RenewalOutcome
from kvplane_services.lease.ports import LeaseControl
from kvplane_services.session.changes import Decide
from kvplane_services.session.config import SessionConfig
from kvplane_services.session.hints import check_keep, hinted
from kvplane_services.session.history import deleted, ended, reborn
from kvplane_services.session.keeper import live_token
from kvplane_services.session.model import Session, SessionHints, SessionKey
from kvplane_services.session.parts import SessionParts
from kvplane_services.session.record import PackedRecord, RecordCodec, SessionRecord
from kvplane_services.store.members import Members
from kvplane_services.store.model import Event
from kvplane_services.store.paging import Page, PageRequest
from kvplane_services.store.ports import Feed, Table
from kvplane_services.store.requests import RequestMemory


class SessionRegistry:
    """Follows leases, remembers sessions, and passes hints on.

    Args:
        table: Where sessions are written.
        codec: Writes them down.
        leases: All leases, and their changes.
        control: The lease manager.
        members: Which replicas are alive; this one is among them.
        reachable: Whether the store is likely to answer.
        clock: Time.
        config: Durations and bounds.

    """

    def __init__(
        self,
        *,
        table: Table[PackedRecord],
        codec: RecordCodec,
        leases: Feed[Lease],
        control: LeaseControl,
        members: Members,
        reachable: Callable[[], bool],
        clock: Clock,
        config: SessionConfig | None = None,
    ) -> None:
        self._table = table
        self._clock = clock
        self._config = config or SessionConfig()
        self._parts = parts = SessionParts.of(
            table=table,
            codec=codec,
            leases=leases,
            control=control,
            members=members,
            reachable=reachable,
            clock=clock,
            config=self._config,
        )
        self._book = parts.book
        self._keeper = parts.keeper
        self._requests: RequestMemory[tuple[Session, float]] = RequestMemory()

    @property
    def unwritten(self) -> int:
        """Changes of sessions that the store has not taken yet."""
        return len(self._parts.saver)

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

        A retry with the same request id returns the first answer at the replica that gave it,
        and the session as it is by then at another.

        Raises:
            InvalidRequest: The key, a hint or the request id is malformed.
            AlreadyExists: There is a session of that key.
            Saturated: As many sessions as can be remembered have live leases.
            Unavailable: The lease manager or the store cannot be reached.

        """
        key.validate()
        hints = hints or SessionHints()
        asked = (key, hints, ttl)
        first = self._requests.find(request_id, asked, self._clock.now())
        if first is not None:
            return first
        name = key.name

        async def decide(record: SessionRecord | None) -> SessionRecord:
            if record is None and not self._parts.saver.make_room():
                raise Saturated(
                    f"all {self._config.max_sessions} sessions have live leases",
                    retry_after=self._config.claim_interval,
                )
            if record is not None and not record.deleted:
                if request_id and record.request_id == request_id:
                    return record
                raise AlreadyExists(f"{name} exists: update or touch it", session=name)
            new = reborn(record or SessionRecord(), ttl=self._config.clamp_ttl(ttl))
            return hinted(
                new._replace(request_id=request_id),
                self._config,
                keep_for=hints.keep_for,
                final_turn=hints.final_turn,
            )

        record = await self._make(name, decide)
        answer = (self._book.shown(name, record), record.ttl)
        self._requests.remember(request_id, asked, answer, self._clock.now())
        return answer

    def get(self, key: SessionKey) -> Session:
        """The session. Raises NotFound."""
        entry = self._book.find(key.name)
        if entry is None or entry.deleted:
            raise _not_found(key.name)
        return self._book.view(entry)

    async def list(
        self, page: PageRequest, *, tenant: str = "", model: str = "", engine: str = ""
    ) -> Page[Session]:
        """Sessions by name; `engine` is a full name. Raises InvalidRequest, Unavailable."""
        revision = await self._table.revision()
        start = f"sessions/{quote(tenant, safe='')}:" if tenant else ""
        second = quote(model, safe="")
        engine_id = engine.removeprefix("engines/")
        entries = (
            entry
            for entry in self._book.entries()
            if entry.name.startswith(start)
            and second in ("", entry.name.split(":", 2)[1])
            and engine_id in ("", entry.engine_id)
        )
        return page.take(
            entries,
            key=lambda entry: entry.name,
            filters=("sessions", tenant, model, engine),
            revision=revision,
        ).map(self._book.view)

    async def update(
        self,
        key: SessionKey,
        *,
        keep_for: float | None = None,
        final_turn: bool | None = None,
        etag: str = "",
    ) -> Session:
        """Sets those of a session's hints that are given.

        A wish to be kept counts from now on, and zero takes it back. With `final_turn` the live
        lease, and the one that the running or next turn leaves, rank last at their engine: they
        are given up first, and not released. Who uses one of them takes that back.

        Raises:
            InvalidRequest: A hint is malformed.
            NotFound: There is no such session.
            Conflict: `etag` is not that of the session.
            Unavailable: The lease manager or the store cannot be reached.

        """
        name = key.name
        kept = SessionRecord()

        async def decide(record: SessionRecord | None) -> SessionRecord:
            nonlocal kept
            kept = _existing(name, record)
            self._check_etag(name, kept, etag)
            return hinted(kept, self._config, keep_for=keep_for, final_turn=final_turn)

        record = await self._make(name, decide)
        if final_turn and record.lease_id:
            lease = f"leases/{record.lease_id}"
            await self._keeper.tell_final(name, lease, live_token(record))
        elif not record.hints.keep_for:
            await self._keeper.drop(name, kept)
        elif keep_for is not None:
            await self._claim(name)
        return self._book.shown(name, record)

    async def delete(self, key: SessionKey, *, etag: str = "") -> None:
        """Releases a session's lease and forgets the session. Does nothing if there is none.

        Raises:
            Conflict: `etag` is not that of the session.
            Unavailable: The lease manager or the store cannot be reached.

        """
        name = key.name

        async def decide(record: SessionRecord | None) -> SessionRecord | None:
            if record is None or record.deleted:
                return None
            self._check_etag(name, record, etag)
            await self._keeper.release(name, record)
            return deleted(record, remember=self._config.remember_deleted)

        await self._parts.changes.make(name, decide)

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
        check_keep(keep_for)
        name = key.name
        granted = self._config.clamp_keep(keep_for)

        async def decide(record: SessionRecord | None) -> SessionRecord:
            return hinted(_existing(name, record), self._config, keep_for=granted)

        record = await self._make(name, decide)
        outcome = await self._claim(name)
        kept = granted if outcome is RenewalOutcome.RENEWED else 0.0
        return self._book.shown(name, record), kept

    async def end(self, key: SessionKey) -> Session:
        """Releases a session's lease and marks the session ended.

        Raises:
            NotFound: There is no such session.
            Unavailable: The lease manager or the store cannot be reached.

        """
        name = key.name

        async def decide(record: SessionRecord | None) -> SessionRecord:
            found = _existing(name, record)
            await self._keeper.release(name, found)
            return ended(found)

        return self._book.shown(name, await self._make(name, decide))

    def feed(self) -> Feed[Session]:
        """All sessions by name, then every change."""
        return self._parts.events

    def watch(self, *, after: int = 0) -> AsyncIterator[Event[Session]]:
        """See `Table.watch`."""
        return self._parts.events.watch(after=after)

    async def run(self) -> None:
        """Follows leases and other replicas, and does what sessions need, until cancelled."""
        await self._parts.run()

    # -- Steps -------------------------------------------------------------------------------

    async def _make(self, name: str, decide: Decide) -> SessionRecord:
        record = await self._parts.changes.make(name, decide)
        return _existing(name, record)

    async def _claim(self, name: str) -> RenewalOutcome:
        self._parts.wishes.is_new(name)  # Claimed here and now.
        return await self._keeper.claim(name)

    def _check_etag(self, name: str, record: SessionRecord, etag: str) -> None:
        if etag and etag != self._book.shown(name, record).etag:
            raise Conflict(
                f"{name} was changed since its etag was read: read it again and retry",
                session=name,
            )


def _existing(name: str, record: SessionRecord | None) -> SessionRecord:
    if record is None or record.deleted:
        raise _not_found(name)
    return record


def _not_found(name: str) -> NotFound:
    return NotFound(
        f"there is no {name}: it is created by its first turn, or by CreateSession", session=name
    )
