"""This process's copy of a table: its values, and its latest events for those who watch."""

import asyncio
import bisect
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Generic, TypeVar

from kvplane_services.clock import Clock, wait_set
from kvplane_services.errors import Saturated, WatchTooOld
from kvplane_services.store.ports import Event, Removed, Snapshot, Synced, Upserted, Versioned

T = TypeVar("T")


class TableCopy(Generic[T]):
    """Values by key, and a bounded log of changes that all readers share.

    A reader is a position in the log, counted from the table's first event ever, so that a slow
    one costs nothing but its own place. Changes come in the order of their revisions.

    Args:
        revision: Revision of the store when the copy begins: nothing before it is held.
        clock: Times bookmarks.
        backlog: Events held for readers; one that falls behind by more is cut.
        bookmark_interval: Seconds between bookmarks on a watch.

    """

    def __init__(
        self, *, revision: int, clock: Clock, backlog: int, bookmark_interval: float
    ) -> None:
        self._clock = clock
        self._bookmark_interval = bookmark_interval
        self._items: dict[str, Versioned[T]] = {}
        self._revision = revision
        self._log: deque[Upserted[T] | Removed] = deque(maxlen=backlog)
        self._logged = 0
        self._compacted = revision
        # Rises when the copy starts over: readers of before are cut.
        self._generation = 0
        self._readers: set[asyncio.Event] = set()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def revision(self) -> int:
        """Revision of the store that the copy is at."""
        return self._revision

    def find(self, key: str) -> Versioned[T] | None:
        """The value, or None."""
        return self._items.get(key)

    def snapshot(self) -> Snapshot[T]:
        """All values by key."""
        items = tuple(self._items[key] for key in sorted(self._items))
        return Snapshot(items, self._revision)

    def put(self, key: str, value: T, revision: int) -> None:
        """Takes a write in."""
        self._items[key] = Versioned(key, value, revision)
        self._append(Upserted(key, value, revision))

    def delete(self, key: str, revision: int) -> None:
        """Takes a deletion in. Does nothing if there is no value."""
        if self._items.pop(key, None) is not None:
            self._append(Removed(key, revision))

    def advance(self, revision: int) -> None:
        """Notes that the store is at `revision`, and that nothing here changed up to it."""
        self._revision = max(self._revision, revision)

    def start_over(self, items: Iterable[Versioned[T]], revision: int) -> None:
        """Replaces everything, and cuts all readers: what happened in between is not known."""
        self._items = {item.key: item for item in items}
        self._log.clear()
        self._revision = self._compacted = revision
        self._generation += 1
        self._wake()

    async def watch(self, *, after: int = 0) -> AsyncIterator[Event[T]]:
        """See `kvplane_services.store.ports.Table.watch`."""
        wake = asyncio.Event()
        self._readers.add(wake)
        try:
            generation = self._generation
            if after == 0:
                snapshot = self.snapshot()
                position = self._logged
                for item in snapshot.items:
                    yield Upserted(item.key, item.value, item.revision)
                yield Synced(snapshot.revision)
            else:
                position = self._position_after(after)
                caught_up = self._revision
                while (event := self._event_at(position, generation)) is not None:
                    yield event
                    position += 1
                yield Synced(caught_up)
            bookmark_at = self._clock.now() + self._bookmark_interval
            while True:
                wake.clear()
                while (event := self._event_at(position, generation)) is not None:
                    yield event
                    position += 1
                if self._clock.now() >= bookmark_at:
                    bookmark_at = self._clock.now() + self._bookmark_interval
                    yield Synced(self._revision)
                    continue
                await wait_set(wake, bookmark_at - self._clock.now(), clock=self._clock)
        finally:
            self._readers.discard(wake)

    def _append(self, event: Upserted[T] | Removed) -> None:
        if len(self._log) == self._log.maxlen:
            self._compacted = self._log[0].revision
        self._log.append(event)
        self._logged += 1
        self._revision = max(self._revision, event.revision)
        self._wake()

    def _wake(self) -> None:
        for wake in self._readers:
            wake.set()

    def _position_after(self, after: int) -> int:
        if not self._compacted <= after <= self._revision:
            raise self._too_old(after)
        index = bisect.bisect_right(self._log, after, key=lambda event: event.revision)
        return self._logged - len(self._log) + index

    def _event_at(self, position: int, generation: int) -> Upserted[T] | Removed | None:
        if generation != self._generation:
            raise self._too_old(self._compacted)
        if position == self._logged:
            return None
        oldest = self._logged - len(self._log)
        if position < oldest:
            raise Saturated(
                "the reader fell too far behind; watch again from the start",
                retry_after=1.0,
            )
        return self._log[position - oldest]

    def _too_old(self, after: int) -> WatchTooOld:
        return WatchTooOld(
            f"changes after revision {after} are not held; list again, then watch",
            revision=str(self._revision),
        )
