"""Writes down what leases say of sessions, and takes away those that are forgotten.

Each write names the revision that it was decided on. What somebody else wrote in between is read,
and what is still missing from it is written on top.
"""

import asyncio
import logging
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from kvplane_services.clock import Clock, jittered
from kvplane_services.errors import Conflict, Unavailable, logged
from kvplane_services.session.book import SessionBook
from kvplane_services.session.config import SessionConfig
from kvplane_services.session.entry import Entry
from kvplane_services.session.record import PackedRecord, RecordCodec, SessionRecord
from kvplane_services.session.shares import Shares
from kvplane_services.store.model import Delete, Put
from kvplane_services.store.ports import MAX_CHANGES, Table

_log = logging.getLogger(__name__)


class _Change(NamedTuple):
    change: Put[PackedRecord] | Delete
    entry: Entry | None = None
    record: SessionRecord = SessionRecord()


class Saver:
    """Brings what waits in the book into the table.

    Args:
        table: Where sessions are written.
        reachable: Whether the store is likely to answer.
        book: The sessions.
        codec: Writes records down.
        shares: Which sessions this replica looks after.
        clock: Time.
        config: Durations and bounds.

    """

    def __init__(
        self,
        *,
        table: Table[PackedRecord],
        reachable: Callable[[], bool],
        book: SessionBook,
        codec: RecordCodec,
        shares: Shares,
        clock: Clock,
        config: SessionConfig,
    ) -> None:
        self._table = table
        self._reachable = reachable
        self._book = book
        self._codec = codec
        self._shares = shares
        self._clock = clock
        self._config = config
        self._queue: dict[str, Entry] = {}
        # Revisions of forgotten sessions that the store still has.
        self._deletions: dict[str, int] = {}
        self._wake = asyncio.Event()
        self._reachable_since = clock.now()
        # Whether the last attempt failed: the log is told of the first one only.
        self._away = False

    def __len__(self) -> int:
        """Changes that this replica is to write, and the store has not taken yet."""
        return len(self._queue) + len(self._deletions)

    def note(self, name: str) -> None:
        """Writes a session soon, if something of it waits and this replica looks after it."""
        entry = self._book.find(name)
        if entry is not None and entry.unsaved is not None and self._shares.mine(name):
            self._put_in(entry)

    def review(self) -> None:
        """Looks for what waits though nobody wrote it: its keeper may be gone, or have changed."""
        now = self._clock.now()
        if not self._reachable():
            self._reachable_since = now
        longest = now - self._config.save_patience
        late = self._reachable_since <= longest
        for entry in self._book.unsaved():
            since = entry.unsaved.since if entry.unsaved else now
            if (late and since <= longest) or self._shares.mine(entry.name):
                self._put_in(entry)

    def forget(self, entry: Entry) -> None:
        """Forgets a session, and takes it out of the store if this replica looks after it."""
        self._queue.pop(entry.name, None)
        self._book.forget(entry)
        if entry.revision and self._shares.mine(entry.name):
            self._deletions[entry.name] = entry.revision
            self._wake.set()

    def make_room(self, more: int = 1) -> bool:
        """Forgets the sessions idle longest until so many more fit; tells whether they do."""
        while len(self._book) + more > self._config.max_sessions:
            entry = self._book.oldest()
            if entry is None:
                return False
            self.forget(entry)
        return True

    async def run(self) -> None:
        """Writes whenever something waits, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue or self._deletions:
                try:
                    await self._write_some()
                    self._away = False
                except Unavailable as error:
                    if not self._away:
                        _log.warning("changes of sessions wait for the store: %s", logged(error))
                    self._away = True
                    await self._clock.sleep(jittered(error.retry_after))

    async def read_again(self, name: str) -> None:
        """Takes in what the store has of a session now. Raises Unavailable."""
        found = await self._table.get(name, current=True)
        if found is None:
            # Forgotten just as it was used, or lost: either way it is written anew.
            self._book.lose(name)
        else:
            self._book.adopt(name, found.value, found.revision, anew=True)

    # -- Steps -------------------------------------------------------------------------------

    def _put_in(self, entry: Entry) -> None:
        self._queue[entry.name] = entry
        self._wake.set()

    async def _write_some(self) -> None:
        changes: list[_Change] = []
        for name, entry in tuple(islice(self._queue.items(), MAX_CHANGES)):
            if entry.unsaved is None or self._book.find(name) is not entry:
                del self._queue[name]
                continue
            record = entry.unsaved.record
            packed = self._codec.pack(record)
            changes.append(_Change(Put(name, packed, entry.revision), entry, record))
        for name, revision in tuple(islice(self._deletions.items(), MAX_CHANGES - len(changes))):
            # One that came back is written over, or found when that is refused.
            if name not in self._queue:
                changes.append(_Change(Delete(name, revision)))
        await self._write(changes)

    async def _write(self, changes: list[_Change]) -> None:
        if not changes:
            return
        try:
            revision = await self._table.commit([change.change for change in changes])
        except Conflict:
            if len(changes) == 1:
                await self.read_again(changes[0].change.key)
                self._done(changes[0])
                return
            # Which of them is refused shows when each is written by itself.
            for change in changes:
                await self._write([change])
            return
        for each in changes:
            if each.entry is not None and isinstance(each.change, Put):
                self._book.saved(each.entry, each.change.value, revision, each.record)
            self._done(each)

    def _done(self, change: _Change) -> None:
        name = change.change.key
        self._deletions.pop(name, None)
        entry = self._queue.get(name)
        if entry is not None and entry.unsaved is None:
            del self._queue[name]
