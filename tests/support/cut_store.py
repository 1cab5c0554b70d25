"""One store that several replicas share, which each can be cut from, and which can lose its data.

Anchors lapse here as they do in a store of their own: with the values on them, when nobody who
reaches the store keeps them.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from kvplane_services.adapters.memory import MemoryStore, MemoryTable
from kvplane_services.errors import Unavailable
from kvplane_services.store.commits import anchor_gone
from kvplane_services.store.losses import Losses
from kvplane_services.store.model import Delete, Event, Guard, Put, Snapshot, TableSpec, Versioned
from kvplane_services.store.ports import Sequence as NumberSequence
from tests.support.clock import FakeClock

T = TypeVar("T")


@dataclass
class _Anchor:
    ttl: float
    until: float
    keepers: set["CutStore"] = field(default_factory=set)
    values: set[tuple[str, str]] = field(default_factory=set)


class SharedStore:
    """The store itself. `replica()` gives each replica its own way to it."""

    def __init__(self, *, clock: FakeClock, backlog: int = 4096) -> None:
        self.clock = clock
        self.memory = MemoryStore(clock=clock, backlog=backlog)
        self.anchors: dict[str, _Anchor] = {}
        self.replicas: list[CutStore] = []
        self.writes = 0
        self._opened = 0

    def replica(self) -> "CutStore":
        """A replica's way to the store."""
        self.replicas.append(CutStore(self))
        return self.replicas[-1]

    def lapse(self) -> None:
        """Removes every anchor whose time is up, with its values."""
        for name, anchor in tuple(self.anchors.items()):
            if any(not keeper.away for keeper in anchor.keepers):
                anchor.until = self.clock.now() + anchor.ttl
            elif self.clock.now() >= anchor.until:
                self.end_anchor(name)

    def end_anchor(self, name: str) -> None:
        """Removes an anchor with its values, whoever keeps it."""
        anchor = self.anchors.pop(name, None)
        if anchor is None:
            return
        for table, key in sorted(anchor.values):
            self.remove(table, key)
        for keeper in anchor.keepers:
            keeper.anchors.report(name)

    def lose_everything(self) -> None:
        """Goes on as a store that was set up anew: no values, no anchors, small revisions."""
        self.memory._revision = 1
        for table in self.memory._tables.values():
            table._copy.start_over((), 1)
        for name, anchor in tuple(self.anchors.items()):
            anchor.values.clear()
            self.end_anchor(name)

    def open_anchor(self, ttl: float) -> str:
        """A new anchor, which nobody keeps yet."""
        self._opened += 1
        name = f"anchor-{self._opened}"
        self.anchors[name] = _Anchor(ttl, self.clock.now() + ttl)
        return name

    def hang(self, table: str, change: Put[Any] | Delete) -> None:
        """Notes what a written value hangs on."""
        for anchor in self.anchors.values():
            anchor.values.discard((table, change.key))
        if isinstance(change, Put) and change.anchor:
            self.anchors[change.anchor].values.add((table, change.key))

    def remove(self, table: str, key: str) -> None:
        """Removes a value as the store itself does."""
        held = self.memory._tables[table]
        if held.revision_at(key):
            held._apply(Delete(key), self.memory.advance())


class CutStore:
    """A replica's way to a shared store. Implements `kvplane_services.store.ports.Store`.

    While it is away its calls are refused after `hangs` seconds, its copies stand still, and its
    watches are silent.
    """

    def __init__(self, shared: SharedStore) -> None:
        self.shared = shared
        self.away = False
        self.hangs = 0.0
        # What this replica believes while it has not noticed yet.
        self.notices = True
        self.anchors = CutAnchors(self)
        self._tables: dict[str, CutTable[Any]] = {}
        self._back = asyncio.Event()
        self._back.set()

    @property
    def reachable(self) -> bool:
        """See `Store.reachable`."""
        return not self.away or not self.notices

    @property
    def revision(self) -> int:
        """Revision of the last write to any table."""
        return self.shared.memory.revision

    def table(self, spec: TableSpec[T]) -> "CutTable[T]":
        """See `Store.table`."""
        if spec.name not in self._tables:
            self._tables[spec.name] = CutTable(self, self.shared.memory.table(spec), spec.name)
        return self._tables[spec.name]

    def sequence(self, name: str) -> "CutSequence":
        """See `Store.sequence`."""
        return CutSequence(self, self.shared.memory.sequence(name))

    def cut(self, *, hangs: float = 0.0, notices: bool = True) -> None:
        """Takes the store away: calls are refused, after a while if they hang.

        Args:
            hangs: Seconds until a call is refused.
            notices: Whether `reachable` says so.

        """
        self.hangs, self.notices = hangs, notices
        now = self.shared.clock.now()
        for table in self._tables.values():
            table.freeze()
        for anchor in self.shared.anchors.values():
            if self in anchor.keepers:
                anchor.until = now + anchor.ttl
        self.away = True
        self._back.clear()

    def heal(self) -> None:
        """Gives the store back."""
        self.away = False
        for table in self._tables.values():
            table.thaw()
        self._back.set()

    async def back(self) -> None:
        """Returns once the store can be reached."""
        await self._back.wait()

    async def ask(self) -> None:
        """What every call begins with. Raises Unavailable."""
        if self.away:
            await self.shared.clock.sleep(self.hangs)
        if self.away:
            raise Unavailable("the store is away", retry_after=1.0)


class CutTable(Generic[T]):
    """See `kvplane_services.store.ports.Table`."""

    def __init__(self, store: CutStore, table: MemoryTable[T], name: str) -> None:
        self._store = store
        self._table = table
        self._name = name
        self._frozen: Snapshot[T] | None = None

    def freeze(self) -> None:
        self._frozen = self._table._copy.snapshot()

    def thaw(self) -> None:
        self._frozen = None

    async def get(self, key: str, *, current: bool = False) -> Versioned[T] | None:
        if current:
            await self._store.ask()
        if current or self._frozen is None:
            return await self._table.get(key)
        return next((item for item in self._frozen.items if item.key == key), None)

    async def list(self) -> Snapshot[T]:
        return self._frozen or await self._table.list()

    async def revision(self) -> int:
        return self._frozen.revision if self._frozen else await self._table.revision()

    async def reached(self, revision: int) -> None:
        await self._store.back()
        await self._table.reached(revision)

    async def put(
        self, key: str, value: T, *, expected: int | None = None, anchor: str = ""
    ) -> int:
        await self._store.ask()
        change = Put(key, value, expected, anchor)
        self._check_anchor(change)
        revision = await self._table.put(key, value, expected=expected)
        self._written(change)
        return revision

    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        await self._store.ask()
        deleted = await self._table.delete(key, expected=expected)
        self._written(Delete(key))
        return deleted

    async def commit(
        self, changes: Sequence[Put[T] | Delete], *, guards: Sequence[Guard] = ()
    ) -> int:
        await self._store.ask()
        for change in changes:
            self._check_anchor(change)
        revision = await self._table.commit(
            [replace(one, anchor="") if isinstance(one, Put) else one for one in changes],
            guards=guards,
        )
        self._written(*changes)
        return revision

    async def watch(self, *, after: int = 0) -> AsyncIterator[Event[T]]:
        async for event in self._table.watch(after=after):
            await self._store.back()
            yield event

    def _check_anchor(self, change: Put[T] | Delete) -> None:
        if isinstance(change, Put) and change.anchor not in {"", *self._store.shared.anchors}:
            self._store.anchors.report(change.anchor)
            raise anchor_gone(change.anchor)

    def _written(self, *changes: Put[T] | Delete) -> None:
        self._store.shared.writes += 1
        for change in changes:
            self._store.shared.hang(self._name, change)


class CutSequence:
    """See `kvplane_services.store.ports.Sequence`."""

    def __init__(self, store: CutStore, sequence: NumberSequence) -> None:
        self._store = store
        self._sequence = sequence

    async def next(self, count: int = 1) -> int:
        await self._store.ask()
        return await self._sequence.next(count)


class CutAnchors:
    """See `kvplane_services.store.ports.Anchors`."""

    def __init__(self, store: CutStore) -> None:
        self._store = store
        self._losses = Losses()

    async def open(self, ttl: float, *, keep: bool = True) -> str:
        await self._store.ask()
        name = self._store.shared.open_anchor(ttl)
        if keep:
            self.keep(name, ttl)
        return name

    def keep(self, anchor: str, ttl: float) -> None:
        held = self._store.shared.anchors.get(anchor)
        if held is None:
            self.report(anchor)
        else:
            assert held.ttl == ttl
            held.keepers.add(self._store)

    def drop(self, anchor: str) -> None:
        shared = self._store.shared
        if anchor in shared.anchors and self._store in shared.anchors[anchor].keepers:
            shared.anchors[anchor].keepers.discard(self._store)
            if not self._store.away:
                shared.anchors[anchor].until = shared.clock.now() + shared.anchors[anchor].ttl

    async def revoke(self, anchor: str) -> None:
        await self._store.ask()
        self.drop(anchor)
        self._store.shared.end_anchor(anchor)

    async def lost(self) -> AsyncIterator[str]:
        async for anchor in self._losses.read():
            await self._store.back()
            yield anchor

    def report(self, anchor: str) -> None:
        """Tells this replica that an anchor which it keeps or names is gone."""
        self._losses.report(anchor)
