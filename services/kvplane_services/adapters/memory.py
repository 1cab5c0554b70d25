"""The embedded store: tables in this process's memory, gone with it.

Revisions and sequences start at the wall clock's microseconds, so that they keep growing when
the plane restarts: a watch that resumes at a revision of an earlier life is told `WatchTooOld`,
and an epoch or a fencing token of an earlier life is smaller than every new one.

Not promised: that numbers keep growing if the wall clock is set back by more than the plane was
down, or if more than a million are drawn a second for long.
"""

import asyncio
import bisect
from collections import deque
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

from kvplane_services.clock import Clock, wait_set
from kvplane_services.errors import Conflict, Saturated, WatchTooOld
from kvplane_services.store.ports import Event, Removed, Snapshot, Synced, Upserted, Versioned

T = TypeVar("T")

_MICROSECONDS = 1_000_000


class MemoryStore:
    """Makes tables and sequences that share one revision counter.

    Args:
        clock: Seeds numbers, and times bookmarks.
        backlog: Events that each table holds for its watches; a reader that falls behind by
            more is cut.
        bookmark_interval: Seconds between bookmarks on a watch.

    """

    def __init__(
        self, *, clock: Clock, backlog: int = 4096, bookmark_interval: float = 30.0
    ) -> None:
        if backlog < 1 or bookmark_interval <= 0:
            raise ValueError("backlog must be at least 1 and bookmark_interval positive")
        self._clock = clock
        self._backlog = backlog
        self._bookmark_interval = bookmark_interval
        self._revision = _wall_microseconds(clock)

    @property
    def revision(self) -> int:
        """Revision of the last write to any table."""
        return self._revision

    def table(self, kind: type[T]) -> "MemoryTable[T]":
        """A new, empty table for values of `kind`."""
        return MemoryTable(
            kind=kind,
            store=self,
            clock=self._clock,
            backlog=self._backlog,
            bookmark_interval=self._bookmark_interval,
        )

    def sequence(self) -> "MemorySequence":
        """A new sequence."""
        return MemorySequence(clock=self._clock)

    def advance(self) -> int:
        """The revision of a write that is about to happen. For tables."""
        self._revision += 1
        return self._revision


class MemoryTable(Generic[T]):
    """See `kvplane_services.store.ports.Table`. Made by `MemoryStore.table`."""

    def __init__(
        self,
        *,
        kind: type[T],
        store: MemoryStore,
        clock: Clock,
        backlog: int,
        bookmark_interval: float,
    ) -> None:
        self._kind = kind
        self._store = store
        self._clock = clock
        self._bookmark_interval = bookmark_interval
        self._items: dict[str, Versioned[T]] = {}
        # All readers share one bounded log. A reader is a position in it, counted from the
        # table's first event ever, so a slow one costs nothing but its own place.
        self._log: deque[Upserted[T] | Removed] = deque(maxlen=backlog)
        self._logged = 0
        self._compacted = store.revision
        self._readers: set[asyncio.Event] = set()

    def __repr__(self) -> str:
        return (
            f"<MemoryTable of {self._kind.__name__}: {len(self._items)} values, "
            f"{len(self._log)} events held, {len(self._readers)} readers>"
        )

    async def get(self, key: str) -> Versioned[T] | None:
        """See `Table.get`."""
        return self._items.get(key)

    async def list(self) -> Snapshot[T]:
        """See `Table.list`."""
        return self._snapshot()

    async def revision(self) -> int:
        """See `Table.revision`."""
        return self._store.revision

    async def put(self, key: str, value: T, *, expected: int | None = None) -> int:
        """See `Table.put`."""
        self._check(key, expected)
        revision = self._store.advance()
        self._items[key] = Versioned(key, value, revision)
        self._append(Upserted(key, value, revision))
        return revision

    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        """See `Table.delete`."""
        self._check(key, expected)
        if self._items.pop(key, None) is None:
            return False
        self._append(Removed(key, self._store.advance()))
        return True

    async def watch(self, *, after: int = 0) -> AsyncIterator[Event[T]]:
        """See `Table.watch`."""
        wake = asyncio.Event()
        self._readers.add(wake)
        try:
            if after == 0:
                snapshot = self._snapshot()
                position = self._logged
                for item in snapshot.items:
                    yield Upserted(item.key, item.value, item.revision)
                yield Synced(snapshot.revision)
            else:
                position = self._position_after(after)
                caught_up = self._store.revision
                while (event := self._event_at(position)) is not None:
                    yield event
                    position += 1
                yield Synced(caught_up)
            bookmark_at = self._clock.now() + self._bookmark_interval
            while True:
                wake.clear()
                while (event := self._event_at(position)) is not None:
                    yield event
                    position += 1
                if self._clock.now() >= bookmark_at:
                    bookmark_at = self._clock.now() + self._bookmark_interval
                    yield Synced(self._store.revision)
                    continue
                await wait_set(wake, bookmark_at - self._clock.now(), clock=self._clock)
        finally:
            self._readers.discard(wake)

    def _snapshot(self) -> Snapshot[T]:
        items = tuple(self._items[key] for key in sorted(self._items))
        return Snapshot(items, self._store.revision)

    def _check(self, key: str, expected: int | None) -> None:
        if expected is None:
            return
        held = self._items.get(key)
        found = held.revision if held else 0
        if found != expected:
            raise Conflict(
                f"{key} is at revision {found}, not {expected}: read it again and retry",
                key=key,
            )

    def _append(self, event: Upserted[T] | Removed) -> None:
        if len(self._log) == self._log.maxlen:
            self._compacted = self._log[0].revision
        self._log.append(event)
        self._logged += 1
        for wake in self._readers:
            wake.set()

    def _position_after(self, after: int) -> int:
        if not self._compacted <= after <= self._store.revision:
            raise WatchTooOld(
                f"changes after revision {after} are not held; list again, then watch",
                revision=str(self._store.revision),
            )
        index = bisect.bisect_right(self._log, after, key=lambda event: event.revision)
        return self._logged - len(self._log) + index

    def _event_at(self, position: int) -> Upserted[T] | Removed | None:
        if position == self._logged:
            return None
        oldest = self._logged - len(self._log)
        if position < oldest:
            raise Saturated(
                "the reader fell too far behind; watch again from the start",
                retry_after=1.0,
            )
        return self._log[position - oldest]


class MemorySequence:
    """See `kvplane_services.store.ports.Sequence`."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._last = 0

    async def next(self) -> int:
        """See `Sequence.next`."""
        self._last = max(self._last + 1, _wall_microseconds(self._clock))
        return self._last


def _wall_microseconds(clock: Clock) -> int:
    return int(clock.wall().timestamp() * _MICROSECONDS)
