"""This process's copy of a table: its values, and its latest events for those who watch."""

import asyncio
import bisect
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from typing import Generic, TypeVar

from kvplane_services.clock import Clock, wait_set
from kvplane_services.errors import Saturated, WatchTooOld
from kvplane_services.store.early import Early, EarlyValues
from kvplane_services.store.model import Event, Removed, Snapshot, Synced, Upserted, Versioned

T = TypeVar("T")

# Events that a reader is told before other tasks get their turn: nobody else would, where a reader
# takes in many at once.
_CHUNK = 64
# Part of a large table's size that its log may have: who reads all of it takes a while, and then
# needs what changed meanwhile.
_LOG_SHARE = 4


class TableCopy(Generic[T]):
    """Values by key, and a bounded log of changes that all readers share.

    A reader is a position in the log, counted from the table's first event ever, so that a slow
    one costs nothing but its own place. Changes come in the order of their revisions.

    What the process learns ahead of the changes before it (its own writes, for one) is read at
    once, and told to readers when its turn in that order comes.

    Args:
        revision: Revision of the store when the copy begins: nothing before it is held.
        clock: Times bookmarks.
        backlog: Events held for readers, or a quarter of what the table holds if that is more; a
            reader that falls behind by more is cut.
        bookmark_interval: Seconds between bookmarks on a watch.
        patience: Seconds that a watch waits for a revision that the copy has not reached yet,
            such as one that another replica told its reader.

    """

    def __init__(
        self,
        *,
        revision: int,
        clock: Clock,
        backlog: int,
        bookmark_interval: float,
        patience: float = 0.0,
    ) -> None:
        self._clock = clock
        self._bookmark_interval = bookmark_interval
        self._patience = patience
        self._items: dict[str, Versioned[T]] = {}
        self._early: EarlyValues[T] = EarlyValues()
        self._revision = self._started = revision
        self._backlog = backlog
        self._log: deque[Upserted[T] | Removed] = deque()
        self._logged = 0
        self._compacted = revision
        # Rises when the copy starts over: readers of before are cut.
        self._generation = 0
        self._readers: set[asyncio.Event] = set()
        # Those who wait for a revision.
        self._waiting: set[asyncio.Event] = set()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def revision(self) -> int:
        """Revision of the store that the copy is at."""
        return self._revision

    @property
    def started(self) -> int:
        """Revision of the store that the copy began with, or started over with last."""
        return self._started

    def find(self, key: str) -> Versioned[T] | None:
        """The value, or None."""
        early = self._early.find(key)
        return self._items.get(key) if early is None else early.item

    def snapshot(self) -> Snapshot[T]:
        """All values by key."""
        found: Mapping[str, Versioned[T]] = self._items
        if self._early:
            found = dict(self._items)
            for key, early in self._early.all().items():
                if early.item is None:
                    found.pop(key, None)
                else:
                    found[key] = early.item
        return Snapshot(tuple(found[key] for key in sorted(found)), self._revision)

    # -- Changes, in the order of their revisions ------------------------------------------------

    def put(self, key: str, value: T, revision: int) -> None:
        """Takes a write in."""
        held = self._items.get(key)
        # One text per key, however often it is written.
        key = key if held is None else held.key
        self._items[key] = Versioned(key, value, revision)
        self._append(Upserted(key, value, revision))

    def delete(self, key: str, revision: int) -> None:
        """Takes a deletion in. Does nothing if there is no value."""
        if self._items.pop(key, None) is not None:
            self._append(Removed(key, revision))

    def advance(self, revision: int) -> None:
        """Notes that the store is at `revision`, and that nothing here changed up to it."""
        self._revision = max(self._revision, revision)
        if self._early:
            self._early.reached(self._revision)
        for waiting in self._waiting:
            waiting.set()

    async def reached(self, revision: int) -> None:
        """Returns once the copy is at `revision`, or starts over."""
        generation = self._generation
        arrived = asyncio.Event()
        self._waiting.add(arrived)
        try:
            while self._revision < revision and self._generation == generation:
                arrived.clear()
                await arrived.wait()
        finally:
            self._waiting.discard(arrived)

    # -- What is known ahead of its turn ---------------------------------------------------------

    def early_value(self, key: str, revision: int) -> T | None:
        """The value of that revision, if it was learnt ahead of its turn."""
        early = self._early.find(key)
        if early is None or early.item is None or early.revision != revision:
            return None
        return early.item.value

    def learn(self, key: str, value: T, revision: int) -> None:
        """Notes what was written at a revision, whose turn is yet to come."""
        if revision > self._revision:
            held = self._items.get(key)
            item = Versioned(key if held is None else held.key, value, revision)
            self._early.add(key, Early(item, revision))

    def learn_gone(self, key: str, revision: int) -> None:
        """Notes that there is no value at a revision, whose turn is yet to come."""
        if revision > self._revision:
            self._early.add(key, Early(None, revision))

    # -- Starting over ---------------------------------------------------------------------------

    def learnt(self) -> Mapping[str, Early[T]]:
        """What was learnt ahead so far, for `start_over`."""
        return self._early.all()

    def start_over(
        self,
        items: Iterable[Versioned[T]],
        revision: int,
        *,
        learnt: Mapping[str, Early[T]] | None = None,
    ) -> None:
        """Replaces everything, and cuts all readers: what happened in between is not known.

        Args:
            items: All values.
            revision: What they were read at. It may be smaller than before: the store may have
                lost its data.
            learnt: What had been learnt when the reading began: `items` have it, or what came
                after it.

        """
        self._items = {item.key: item for item in items}
        self._log.clear()
        self._revision = self._started = self._compacted = revision
        self._generation += 1
        self._early.drop(learnt or {})
        self._early.reached(revision)
        self._wake()
        for waiting in self._waiting:
            waiting.set()

    # -- Readers ---------------------------------------------------------------------------------

    async def watch(self, *, after: int = 0) -> AsyncIterator[Event[T]]:
        """See `kvplane_services.store.ports.Table.watch`."""
        async with aclosing(self._events(after)) as events:
            told = 0
            async for event in events:
                yield event
                told += 1
                if told % _CHUNK == 0:
                    await self._clock.sleep(0)

    async def _events(self, after: int) -> AsyncGenerator[Event[T]]:
        wake = asyncio.Event()
        self._readers.add(wake)
        try:
            if after > self._revision:
                await self._wait_for(after)
            generation = self._generation
            # Revisions that the reader has of keys ahead of their turn: it is not told of them,
            # nor of what was before them, when their turn comes.
            ahead: dict[str, int] = {}
            if after == 0:
                snapshot = self.snapshot()
                position = self._logged
                ahead = {key: early.revision for key, early in self._early.all().items()}
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
                    position += 1
                    if event.revision <= ahead.get(event.key, 0):
                        continue
                    yield event
                if self._clock.now() >= bookmark_at:
                    bookmark_at = self._clock.now() + self._bookmark_interval
                    yield Synced(self._revision)
                    continue
                await wait_set(wake, bookmark_at - self._clock.now(), clock=self._clock)
        finally:
            self._readers.discard(wake)

    def _append(self, event: Upserted[T] | Removed) -> None:
        self._log.append(event)
        while len(self._log) > max(self._backlog, len(self._items) // _LOG_SHARE):
            self._compacted = self._log.popleft().revision
        self._logged += 1
        self._revision = max(self._revision, event.revision)
        self._wake()

    def _wake(self) -> None:
        for wake in self._readers:
            wake.set()

    async def _wait_for(self, revision: int) -> None:
        waiting = asyncio.ensure_future(self.reached(revision))
        waited = asyncio.ensure_future(self._clock.sleep(self._patience))
        try:
            await asyncio.wait((waiting, waited), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            waited.cancel()
            await asyncio.gather(waiting, waited, return_exceptions=True)

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
