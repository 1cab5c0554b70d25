"""Keeps this process's copies of all tables up to date, over one watch of everything."""

import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvplane.client.backoff import Backoff
from kvplane_services.adapters.etcd.backend import (
    Changed,
    CompactedError,
    Compare,
    Deleted,
    EtcdBackend,
    Header,
    KeyValue,
    PutOp,
    WatchBatch,
)
from kvplane_services.adapters.etcd.contact import Contact
from kvplane_services.adapters.etcd.intake import Intake
from kvplane_services.adapters.etcd.keys import KeySpace
from kvplane_services.clock import Clock
from kvplane_services.errors import StoreRefused, Unavailable

_log = logging.getLogger(__name__)

# So often etcd may be compacted under a process that reads everything to begin with.
_STARTS = 3


@dataclass(frozen=True, slots=True)
class _History:
    """What tells a store from one that took its place: etcd may be set up anew under old names."""

    cluster: int
    created: int
    mark: bytes


class Mirror:
    """Lists the tables, then watches; watches on where it stopped, and lists again if it must.

    Args:
        backend: The etcd client.
        contact: Told of failures.
        keys: Where things are.
        intakes: The tables to follow, by name.
        clock: Times retries.

    """

    def __init__(
        self,
        *,
        backend: EtcdBackend,
        contact: Contact,
        keys: KeySpace,
        intakes: Mapping[str, Intake[Any]],
        clock: Clock,
    ) -> None:
        self._backend = backend
        self._contact = contact
        self._keys = keys
        self._intakes = intakes
        self._clock = clock
        # Of etcd as last asked, and of what the copies hold; None if that means nothing any more.
        self._history: _History | None = None
        self._copied: _History | None = None
        # Everything up to here was taken in.
        self._revision = 0
        self._stale = True
        self._unknown: set[str] = set()

    async def open(self) -> None:
        """Lists everything. Raises Unavailable, StoreRefused."""
        await self._find_history()
        for _ in range(_STARTS):
            try:
                await self._list()
            except CompactedError:
                continue
            return
        raise Unavailable("etcd was compacted again and again while it was read", retry_after=1.0)

    async def run(self) -> None:
        """Follows all changes, until cancelled."""
        backoff = Backoff(first=0.2, longest=5.0)
        while True:
            try:
                await self._follow(backoff)
            except CompactedError as error:
                _log.debug("%s: everything is listed again", error)
                self._stale = True
                await self._contact.pause(backoff.next())
            except (Unavailable, StoreRefused) as error:
                self._contact.failed(error)
                await self._contact.pause(backoff.next())

    def learn(self, place: bytes, found: KeyValue | None, revision: int) -> None:
        """Notes what a place was found to hold at a revision, ahead of the watch."""
        named = self._keys.parse(place)
        intake = self._intakes.get(named[0]) if named else None
        if named is not None and intake is not None:
            intake.learn(named[1], found, revision)

    # -- Watching --------------------------------------------------------------------------------

    async def _follow(self, backoff: Backoff) -> None:
        await self._is_lost()
        if self._stale:
            await self._list()
        async for batch in self._backend.watch(
            self._keys.prefix, start_revision=self._revision + 1
        ):
            if self._copied is None or batch.header.cluster_id != self._copied.cluster:
                return  # Another etcd than the one that was listed: see what it has.
            backoff.reset()
            self._take(batch)
            # Readers get their turn even where batches come faster than they are taken in.
            await self._clock.sleep(0)
        raise Unavailable("etcd ended the watch", retry_after=1.0)

    def _take(self, batch: WatchBatch) -> None:
        for event in batch.events:
            self._take_event(event)
        self._revision = max(self._revision, batch.header.revision)
        for intake in self._intakes.values():
            intake.advance(self._revision)

    def _take_event(self, event: Changed | Deleted) -> None:
        place = event.item.key if isinstance(event, Changed) else event.key
        found = self._intake(place)
        if found is None:
            return
        key, intake = found
        if _revision(event) <= intake.copy.started:
            return  # The listing has it.
        if isinstance(event, Changed):
            intake.changed(key, event.item)
        else:
            intake.deleted(key, event.mod_revision)

    def _intake(self, place: bytes) -> tuple[str, Intake[Any]] | None:
        named = self._keys.parse(place)
        if named is not None and named[0] in self._intakes:
            return named[1], self._intakes[named[0]]
        if self._keys.is_own(place):
            return None
        table = named[0] if named is not None else "without a table"
        if table not in self._unknown:
            self._unknown.add(table)
            _log.info("keys like %r are not followed by this process", place)
        return None

    # -- Listing ---------------------------------------------------------------------------------

    async def _list(self) -> None:
        """Reads all tables anew."""
        # Whether revisions mean what they meant in the copies.
        same = self._copied is not None
        revision: int | None = None
        for name, intake in self._intakes.items():
            learnt = intake.learnt()
            items: list[Any] = []
            read_at = 0
            # Part by part, or all bytes would be held beside all values for a moment.
            async for part in self._backend.pages(self._keys.table(name)):
                read_at = part.header.revision
                for item in part.items:
                    named = self._keys.parse(item.key)
                    listed = intake.listed(named[1], item, same=same) if named else None
                    if listed is not None:
                        items.append(listed)
                # Large tables take a while: others get their turn.
                await self._clock.sleep(0)
            intake.start_over(items, read_at, learnt=learnt)
            # Tables that were read later have events which are told once more.
            revision = read_at if revision is None else min(revision, read_at)
        self._revision = revision or 0
        self._copied = self._history
        self._stale = False

    # -- Loss of data ----------------------------------------------------------------------------

    async def _is_lost(self) -> bool:
        """Whether etcd lost its data since it was listed; if so, it is to be listed again."""
        header = await self._find_history()
        if self._copied is None:
            return self._stale
        if self._copied == self._history and header.revision >= self._revision:
            return False
        _log.warning(
            "the store in etcd has lost its data, or is a new one: everything that is alive is put "
            "back by itself, and there is nothing to do"
        )
        self._copied = None
        self._stale = True
        return True

    async def _find_history(self) -> Header:
        """Reads the mark of this store's history, and makes it if there is none."""
        place = self._keys.history
        while True:
            header, found = await self._contact.ask(self._backend.get(place))
            if found is not None:
                self._history = _History(header.cluster_id, found.create_revision, found.value)
                return header
            mark = uuid.uuid4().hex.encode()
            await self._contact.ask(self._backend.txn([Compare(place, 0)], [PutOp(place, mark)]))


def _revision(event: Changed | Deleted) -> int:
    return event.item.mod_revision if isinstance(event, Changed) else event.mod_revision
