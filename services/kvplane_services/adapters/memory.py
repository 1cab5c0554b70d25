"""The embedded store: tables in this process's memory, gone with it.

Revisions and sequences start at the wall clock's microseconds, so that they keep growing when
the plane restarts: a watch that resumes at a revision of an earlier life is told `WatchTooOld`,
and an epoch or a fencing token of an earlier life is smaller than every new one.

Not promised: that numbers keep growing if the wall clock is set back by more than the plane was
down, or if more than a million are drawn a second for long.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any, Generic, TypeVar

from kvplane_services.clock import Clock
from kvplane_services.store.commits import check_commit, conflict, guard_failed
from kvplane_services.store.ports import (
    Delete,
    Event,
    Guard,
    Put,
    Snapshot,
    TableSpec,
    Versioned,
)
from kvplane_services.store.table_copy import TableCopy

T = TypeVar("T")

_MICROSECONDS = 1_000_000


class MemoryStore:
    """Makes tables and sequences that share one revision counter. See `store.ports.Store`.

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
        self._tables: dict[str, MemoryTable[Any]] = {}
        self._sequences: dict[str, MemorySequence] = {}
        self._anchors = MemoryAnchors()

    @property
    def revision(self) -> int:
        """Revision of the last write to any table."""
        return self._revision

    @property
    def reachable(self) -> bool:
        """Always: it is this process."""
        return True

    @property
    def anchors(self) -> "MemoryAnchors":
        """See `Store.anchors`."""
        return self._anchors

    def table(self, spec: TableSpec[T]) -> "MemoryTable[T]":
        """See `Store.table`."""
        if spec.name not in self._tables:
            copy: TableCopy[T] = TableCopy(
                revision=self._revision,
                clock=self._clock,
                backlog=self._backlog,
                bookmark_interval=self._bookmark_interval,
            )
            self._tables[spec.name] = MemoryTable(spec=spec, store=self, copy=copy)
        return self._tables[spec.name]

    def sequence(self, name: str) -> "MemorySequence":
        """See `Store.sequence`."""
        return self._sequences.setdefault(name, MemorySequence(clock=self._clock))

    def advance(self) -> int:
        """The revision of a write that is about to happen. For tables."""
        self._revision += 1
        for table in self._tables.values():
            table.advance(self._revision)
        return self._revision

    def revision_of(self, guard: Guard) -> int:
        """Revision of what a guard is about. For tables."""
        table = self._tables.get(guard.table)
        return table.revision_at(guard.key) if table else 0


class MemoryTable(Generic[T]):
    """See `kvplane_services.store.ports.Table`. Made by `MemoryStore.table`."""

    def __init__(self, *, spec: TableSpec[T], store: MemoryStore, copy: TableCopy[T]) -> None:
        self._spec = spec
        self._store = store
        self._copy = copy

    def __repr__(self) -> str:
        return f"<MemoryTable of {self._spec.name}: {len(self._copy)} values>"

    async def get(self, key: str, *, current: bool = False) -> Versioned[T] | None:
        """See `Table.get`."""
        del current  # The copy is the store.
        return self._copy.find(key)

    async def list(self) -> Snapshot[T]:
        """See `Table.list`."""
        return self._copy.snapshot()

    async def revision(self) -> int:
        """See `Table.revision`."""
        return self._store.revision

    async def put(
        self, key: str, value: T, *, expected: int | None = None, anchor: str = ""
    ) -> int:
        """See `Table.put`."""
        change = Put(key, value, expected, anchor)
        self._check(change)
        held = self._copy.find(key)
        if expected is not None and held is not None and held.value == value:
            return held.revision
        self._apply(change, self._store.advance())
        return self._store.revision

    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        """See `Table.delete`."""
        change = Delete(key, expected)
        self._check(change)
        if self._copy.find(key) is None:
            return False
        self._apply(change, self._store.advance())
        return True

    async def commit(
        self, changes: Sequence[Put[T] | Delete], *, guards: Sequence[Guard] = ()
    ) -> int:
        """See `Table.commit`."""
        check_commit(changes, guards)
        for guard in guards:
            if self._store.revision_of(guard) != guard.revision:
                raise guard_failed(guard)
        for change in changes:
            self._check(change)
        if not changes:
            return self._store.revision
        revision = self._store.advance()
        for change in changes:
            self._apply(change, revision)
        return revision

    def watch(self, *, after: int = 0) -> AsyncIterator[Event[T]]:
        """See `Table.watch`."""
        return self._copy.watch(after=after)

    def revision_at(self, key: str) -> int:
        """Revision of a value, 0 if there is none. For guards."""
        held = self._copy.find(key)
        return held.revision if held else 0

    def advance(self, revision: int) -> None:
        """Notes that some table was written. For the store."""
        self._copy.advance(revision)

    def _check(self, change: Put[T] | Delete) -> None:
        held = self._copy.find(change.key)
        found = held.revision if held else 0
        if change.expected is None or change.expected == found:
            return
        done = held is None if isinstance(change, Delete) else held and held.value == change.value
        if not done:
            raise conflict(change.key, found=found, expected=change.expected)

    def _apply(self, change: Put[T] | Delete, revision: int) -> None:
        match change:
            case Put(key=key, value=value):
                self._copy.put(key, value, revision)
            case Delete(key=key):
                self._copy.delete(key, revision)


class MemorySequence:
    """See `kvplane_services.store.ports.Sequence`."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._last = 0

    async def next(self, count: int = 1) -> int:
        """See `Sequence.next`."""
        first = max(self._last + 1, _wall_microseconds(self._clock))
        self._last = first + count - 1
        return first


class MemoryAnchors:
    """See `kvplane_services.store.ports.Anchors`.

    Values here go with the process that would keep their anchor, so that none outlives it, and
    what is not kept must be deleted by whoever put it.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    async def open(self, ttl: float, *, keep: bool = True) -> str:
        """See `Anchors.open`."""
        del ttl, keep
        return f"memory-{next(self._numbers)}"

    def keep(self, anchor: str, ttl: float) -> None:
        """See `Anchors.keep`."""

    def drop(self, anchor: str) -> None:
        """See `Anchors.drop`."""

    async def revoke(self, anchor: str) -> None:
        """See `Anchors.revoke`."""

    async def lost(self) -> AsyncIterator[str]:
        """See `Anchors.lost`: none ever is."""
        await asyncio.Event().wait()
        yield ""


def _wall_microseconds(clock: Clock) -> int:
    return int(clock.wall().timestamp() * _MICROSECONDS)
