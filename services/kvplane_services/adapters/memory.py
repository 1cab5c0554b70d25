"""The embedded store: tables in this process's memory, gone with it.

Revisions and sequences start at the wall clock's microseconds, so that they keep growing when
the plane restarts: a watch that resumes at a revision of an earlier life is told `WatchTooOld`,
and an epoch or a fencing token of an earlier life is smaller than every new one.

Not promised: that numbers keep growing if the wall clock is set back by more than the plane was
down, or if more than a million are drawn a second for long.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from kvplane_services.adapters.memory_anchors import MemoryAnchors
from kvplane_services.clock import Clock
from kvplane_services.store.commits import Held, check_commit, check_held, done_at, guard_failed
from kvplane_services.store.model import Delete, Event, Guard, Put, Snapshot, TableSpec, Versioned
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
        self._anchors = MemoryAnchors(clock=clock, remove=self.remove)

    @property
    def revision(self) -> int:
        """Revision of the last write to any table."""
        return self._revision

    @property
    def reachable(self) -> bool:
        """Always: it is this process."""
        return True

    @property
    def anchors(self) -> MemoryAnchors:
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

    def remove(self, values: Mapping[str, set[str]]) -> None:
        """Removes the values of an anchor that ended. For anchors."""
        if any(values.values()):
            revision = self.advance()
            for table, keys in values.items():
                self._tables[table].remove(keys, revision)

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
        # What each value hangs on that hangs on anything.
        self._anchored: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<MemoryTable of {self._spec.name}: {len(self._copy)} values>"

    async def get(self, key: str, *, current: bool = False) -> Versioned[T] | None:
        """See `Table.get`."""
        del current  # The copy is the store.
        self._store.anchors.lapse()
        return self._copy.find(key)

    async def list(self) -> Snapshot[T]:
        """See `Table.list`."""
        self._store.anchors.lapse()
        return self._copy.snapshot()

    async def revision(self) -> int:
        """See `Table.revision`."""
        return self._store.revision

    async def reached(self, revision: int) -> None:
        """See `Table.reached`."""
        await self._copy.reached(revision)

    async def put(
        self, key: str, value: T, *, expected: int | None = None, anchor: str = ""
    ) -> int:
        """See `Table.put`."""
        return await self.commit([Put(key, value, expected, anchor)])

    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        """See `Table.delete`."""
        self._store.anchors.lapse()
        found = self._copy.find(key) is not None
        await self.commit([Delete(key, expected)])
        return found

    async def commit(
        self, changes: Sequence[Put[T] | Delete], *, guards: Sequence[Guard] = ()
    ) -> int:
        """See `Table.commit`."""
        check_commit(changes, guards)
        self._store.anchors.lapse()
        for change in changes:
            if isinstance(change, Put):
                self._store.anchors.check(change.anchor)
        for guard in guards:
            if self._store.revision_of(guard) != guard.revision:
                raise guard_failed(guard)
        held = [self._held(change) for change in changes]
        for change, found in zip(changes, held, strict=True):
            check_held(change, found)
        if any(
            change.expected not in (None, found.revision)
            for change, found in zip(changes, held, strict=True)
        ):
            done = done_at(changes, held)
            if done is not None:
                return done
        if all(
            isinstance(change, Delete) and not found.revision
            for change, found in zip(changes, held, strict=True)
        ):
            return self._store.revision
        revision = self._store.advance()
        for change in changes:
            self._apply(change, revision)
        return revision

    def watch(self, *, after: int = 0) -> AsyncIterator[Event[T]]:
        """See `Table.watch`."""
        self._store.anchors.lapse()
        return self._copy.watch(after=after)

    def revision_at(self, key: str) -> int:
        """Revision of a value, 0 if there is none. For guards."""
        held = self._copy.find(key)
        return held.revision if held else 0

    def advance(self, revision: int) -> None:
        """Notes that some table was written. For the store."""
        self._copy.advance(revision)

    def remove(self, keys: set[str], revision: int) -> None:
        """Removes values whose anchor ended. For the store."""
        for key in sorted(keys):
            self._apply(Delete(key), revision)

    def _held(self, change: Put[T] | Delete) -> Held:
        held = self._copy.find(change.key)
        if held is None:
            return Held(0, as_wanted=isinstance(change, Delete))
        as_wanted = (
            isinstance(change, Put)
            and held.value == change.value
            and self._anchored.get(change.key, "") == change.anchor
        )
        return Held(held.revision, as_wanted=as_wanted)

    def _apply(self, change: Put[T] | Delete, revision: int) -> None:
        old = self._anchored.pop(change.key, "")
        new = change.anchor if isinstance(change, Put) else ""
        self._store.anchors.move(self._spec.name, change.key, old=old, new=new)
        if new:
            self._anchored[change.key] = new
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


def _wall_microseconds(clock: Clock) -> int:
    return int(clock.wall().timestamp() * _MICROSECONDS)
