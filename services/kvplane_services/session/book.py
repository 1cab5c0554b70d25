"""The book of sessions: what the store has of each, and what the leases have said since.

Every replica has all of it. What leases say is taken in here at once and waits to be written;
what anybody wrote comes back from the store, and what waits is then taken in anew on top of it.
"""

import datetime as dt
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet

from kvplane_services.clock import Clock
from kvplane_services.session.config import SessionConfig
from kvplane_services.session.entry import Entry, Unsaved
from kvplane_services.session.history import News, Taken, joined, take
from kvplane_services.session.idle import IdleSessions
from kvplane_services.session.model import Session
from kvplane_services.session.record import PackedRecord, RecordCodec, SessionRecord
from kvplane_services.session.view import shown
from kvplane_services.session.wishes import Wishes

_UNSEEN = SessionRecord()


class SessionBook:
    """Holds sessions by their full names."""

    def __init__(
        self, *, codec: RecordCodec, wishes: Wishes, clock: Clock, config: SessionConfig
    ) -> None:
        self._codec = codec
        self._wishes = wishes
        self._clock = clock
        self._config = config
        self._entries: dict[str, Entry] = {}
        self._holders: dict[str, Entry] = {}
        self._unsaved: dict[str, Entry] = {}
        # Revisions of forgotten sessions, of which the table may still be about to tell.
        self._forgotten: dict[str, int] = {}
        self._idle = IdleSessions(
            entries=self._entries,
            ttl_of=lambda entry: self.record_of(entry).ttl,
            again=config.min_ttl,
            clock=clock,
        )

    def __len__(self) -> int:
        return len(self._entries)

    # -- Readers -----------------------------------------------------------------------------

    def find(self, name: str) -> Entry | None:
        """The session's entry, deleted ones included."""
        return self._entries.get(name)

    def record_of(self, entry: Entry) -> SessionRecord:
        """All that is known of a session."""
        if entry.unsaved is not None:
            return entry.unsaved.record
        return _UNSEEN if entry.packed is None else self._codec.unpack(entry.packed)

    def holder_of(self, lease_id: str) -> Entry | None:
        """The entry whose live lease that is."""
        return self._holders.get(lease_id)

    def leases(self) -> AbstractSet[str]:
        """Ids of all live leases."""
        return set(self._holders)

    def names(self) -> AbstractSet[str]:
        """Full names of all sessions, deleted ones included."""
        return set(self._entries)

    def entries(self) -> Iterable[Entry]:
        """All entries but deleted ones."""
        return (entry for entry in self._entries.values() if not entry.deleted)

    def unsaved(self) -> list[Entry]:
        """Entries with something that the store does not have, the longest known first."""
        return list(self._unsaved.values())

    def view(self, entry: Entry) -> Session:
        """The session as a reader sees it."""
        return self.shown(entry.name, self.record_of(entry))

    def shown(self, name: str, record: SessionRecord) -> Session:
        """A record of a session as a reader sees it."""
        entry = self._entries.get(name)
        now = self._clock.now()
        left = (entry.used_at if entry else now) + record.ttl - now
        return shown(name, record, expire_time=self._clock.wall() + dt.timedelta(seconds=left))

    def stamped(self, record: SessionRecord) -> SessionRecord:
        """The record with the times of a change that is made now."""
        now = self._clock.wall()
        return record._replace(create_time=record.create_time or now, update_time=now)

    # -- What leases say ---------------------------------------------------------------------

    def take(self, name: str, news: News) -> Taken:
        """Takes news of a lease in; what they change waits to be saved."""
        entry = self._entries.get(name)
        before = _UNSEEN if entry is None else self.record_of(entry)
        taken = self._taken(before, news)
        if taken.record is before:
            return taken
        record = self.stamped(taken.record)
        if entry is None:
            entry = self._entries[name] = Entry(name)
        unsaved = entry.unsaved
        if unsaved is None:
            unsaved = entry.unsaved = Unsaved(self._clock.now(), record)
            self._unsaved[name] = entry
        unsaved.record = record
        unsaved.news[news.lease_id] = news
        self._look(entry, record)
        return taken

    # -- What the store says -----------------------------------------------------------------

    def adopt(
        self, name: str, packed: PackedRecord | None, revision: int, *, anew: bool = False
    ) -> None:
        """Takes in what the store has of a session, None for nothing.

        Args:
            name: Full name of the session.
            packed: The record.
            revision: Revision that it was written or found missing at; what is older than what
                is known is left out.
            anew: Take it in even if it is older: the store has started over.

        """
        entry = self._entries.get(name)
        if not anew and revision <= self._forgotten.get(name, 0):
            return
        self._forgotten.pop(name, None)
        if entry is None:
            if packed is None:
                return
            entry = self._entries[name] = Entry(name)
        elif not anew and revision <= entry.revision:
            return
        elif packed is not None and entry.packed == packed:
            entry.revision = revision
            return
        entry.packed = packed
        entry.revision = 0 if packed is None else revision
        self._rebase(entry)

    def saved(self, entry: Entry, packed: PackedRecord, revision: int, of: SessionRecord) -> None:
        """Takes in that this replica wrote what an entry was: the record `of`."""
        known = self._entries.get(entry.name) is entry
        if not known or entry.unsaved is None or entry.unsaved.record is not of:
            self.adopt(entry.name, packed, revision)
            return
        entry.packed, entry.revision, entry.unsaved = packed, revision, None
        del self._unsaved[entry.name]

    def start_over(self) -> None:
        """Notes that the store tells everything anew, and nothing any more of what was before."""
        self._forgotten.clear()

    def lose(self, name: str) -> None:
        """Takes in that the store, which started over, has nothing of a session that it had."""
        entry = self._entries.get(name)
        if entry is None or entry.packed is None:
            return
        record = self.record_of(entry)
        entry.packed, entry.revision = None, 0
        if entry.unsaved is None:
            entry.unsaved = Unsaved(self._clock.now(), record)
            self._unsaved[name] = entry
        entry.unsaved.lost = record

    def forget(self, entry: Entry) -> None:
        """Drops a session."""
        if self._entries.get(entry.name) is not entry:
            return
        del self._entries[entry.name]
        if entry.revision:
            self._forgotten[entry.name] = entry.revision
        self._unsaved.pop(entry.name, None)
        self._wishes.forget(entry.name)
        if self._holders.get(entry.lease_id) is entry:
            del self._holders[entry.lease_id]

    # -- What is to be forgotten -------------------------------------------------------------

    def due(self) -> Iterator[Entry]:
        """See `IdleSessions.due`."""
        return self._idle.due()

    def oldest(self) -> Entry | None:
        """See `IdleSessions.oldest`."""
        return self._idle.oldest()

    # -- Steps -------------------------------------------------------------------------------

    def _taken(self, record: SessionRecord, news: News) -> Taken:
        return take(record, news, max_turns=self._config.max_turns, ttl=self._config.ttl)

    def _rebase(self, entry: Entry) -> None:
        """Takes in again, on top of the store's record, what that does not have."""
        saved = _UNSEEN if entry.packed is None else self._codec.unpack(entry.packed)
        unsaved = entry.unsaved
        record = saved
        if unsaved is not None:
            if unsaved.lost is not None:
                record = joined(saved, unsaved.lost, max_turns=self._config.max_turns)
            missing: dict[str, News] = {}
            for lease_id, news in unsaved.news.items():
                after = self._taken(record, news).record
                if after is not record:
                    missing[lease_id] = news
                    record = after
            unsaved.news = missing
            if record is saved or record._replace(update_time=saved.update_time) == saved:
                entry.unsaved, record = None, saved
                self._unsaved.pop(entry.name, None)
            else:
                unsaved.record = record = self.stamped(record)
        if entry.packed is None and entry.unsaved is None:
            self.forget(entry)
        else:
            self._look(entry, record)

    def _look(self, entry: Entry, record: SessionRecord) -> None:
        """Notes what is asked of an entry often, after its record changed."""
        now = self._clock.now()
        if entry.lease_id != record.lease_id:
            if self._holders.get(entry.lease_id) is entry:
                del self._holders[entry.lease_id]
            # The text of the lease's own id, where that is at hand.
            entry.lease_id = record.lease_id
            if record.lease_id:
                self._holders[record.lease_id] = entry
        entry.engine_id = record.engine_id
        entry.deleted = record.deleted
        entry.used_at = now
        self._wishes.see(entry.name, record, now)
        if not entry.lease_id:
            self._idle.add(entry, due_at=now + record.ttl)
