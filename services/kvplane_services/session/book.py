"""The book of sessions: every one that is remembered, and which is forgotten first."""

import datetime as dt
import logging
from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from kvplane_services.clock import Clock
from kvplane_services.deadlines import Deadlines
from kvplane_services.errors import Unavailable
from kvplane_services.lease.model import Lease
from kvplane_services.session.config import SessionConfig
from kvplane_services.session.history import etag_of
from kvplane_services.session.model import Session, SessionKey
from kvplane_services.store.journal import Journal

_log = logging.getLogger(__name__)

# Deleted keys remembered, so that a lease on its way out does not bring its session back.
_MAX_DELETED = 4096


@dataclass(slots=True)
class Entry:
    """A session, its granted idle time in seconds, and the largest token of its leases."""

    session: Session
    ttl: float
    token: int = 0


class SessionBook:
    """Holds sessions, notes every change in the journal, and forgets the idle ones."""

    def __init__(self, *, journal: Journal[Session], clock: Clock, config: SessionConfig) -> None:
        self._journal = journal
        self._clock = clock
        self._config = config
        self._entries: dict[str, Entry] = {}
        self._holders: dict[str, Entry] = {}
        # Sessions without a lease, the one idle longest first.
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._deadlines = Deadlines()
        self._deleted: OrderedDict[str, int] = OrderedDict()

    def find(self, key: SessionKey) -> Entry | None:
        """The session's entry, if it is remembered."""
        return self._entries.get(key.name)

    def holder_of(self, lease: str) -> Entry | None:
        """The entry whose live lease has that full name."""
        return self._holders.get(lease)

    def leases(self) -> AbstractSet[str]:
        """Full names of all live leases."""
        return set(self._holders)

    def entries(self) -> Iterable[tuple[str, Entry]]:
        """All entries, with the names of their sessions."""
        return self._entries.items()

    def is_deleted(self, lease: Lease) -> bool:
        """Whether the lease is of a session that was deleted after the lease was granted."""
        return lease.fencing_token <= self._deleted.get(lease.session_key.name, 0)

    def make_room(self) -> bool:
        """Forgets the sessions idle longest until one more fits; tells whether it does."""
        while len(self._entries) >= self._config.max_sessions and self._idle:
            self._drop(next(iter(self._idle)))
        return len(self._entries) < self._config.max_sessions

    def add(self, key: SessionKey, *, ttl: float) -> Entry:
        """Enters a session without turns."""
        now = self._clock.wall()
        entry = Entry(Session(key=key, create_time=now, update_time=now), ttl=ttl)
        self._entries[key.name] = entry
        self._idle[key.name] = None
        self._use(entry)
        self._journal.put(key.name, self.view(entry))
        return entry

    def write(self, entry: Entry, session: Session, *, used: bool = False) -> None:
        """Replaces a session; `used` starts its idle time anew, as does the loss of its lease."""
        name = session.name
        before = entry.session
        lost = bool(before.lease) and not session.lease
        if before.lease != session.lease:
            self._holders.pop(before.lease, None)
            if session.lease:
                self._holders[session.lease] = entry
        entry.session = session
        if session.lease:
            self._idle.pop(name, None)
        elif used or lost:
            self._idle[name] = None
            self._idle.move_to_end(name)
        if used or lost:
            self._use(entry)
        if session != before:
            entry.session = replace(session, update_time=self._clock.wall())
            self._journal.put(name, self.view(entry))

    def remove(self, key: SessionKey, *, deleted: bool) -> None:
        """Forgets a session; `deleted` keeps its leases so far from bringing it back."""
        entry = self._entries.get(key.name)
        if entry is not None and deleted:
            self._deleted[key.name] = entry.token
            self._deleted.move_to_end(key.name)
            if len(self._deleted) > _MAX_DELETED:
                self._deleted.popitem(last=False)
        self._drop(key.name)

    def sweep(self) -> None:
        """Forgets sessions without a lease that were not used for their idle time."""
        for name in self._deadlines.pop_due(self._clock.now()):
            entry = self._entries[name]
            if entry.session.lease:
                self._use(entry)
            else:
                self._drop(name)

    def view(self, entry: Entry) -> Session:
        """The session as a reader sees it."""
        deadline = self._deadlines.get(entry.session.name)
        left = (deadline or self._clock.now()) - self._clock.now()
        return replace(
            entry.session,
            etag=etag_of(entry.session),
            expire_time=self._clock.wall() + dt.timedelta(seconds=left),
        )

    async def flush(self) -> None:
        """Publishes every change so far. Raises Unavailable; the rest is published later."""
        await self._journal.flush()

    async def flush_or_wait(self) -> None:
        """Publishes every change so far, or says that the store is away."""
        try:
            await self.flush()
        except Unavailable as error:
            _log.warning("changes of sessions wait for the store: %s", error.message)

    def _use(self, entry: Entry) -> None:
        self._deadlines.set(entry.session.name, self._clock.now() + entry.ttl)

    def _drop(self, name: str) -> None:
        entry = self._entries.pop(name, None)
        if entry is None:
            return
        self._idle.pop(name, None)
        self._holders.pop(entry.session.lease, None)
        self._deadlines.drop(name)
        self._journal.delete(name)
