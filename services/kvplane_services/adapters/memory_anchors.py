"""What values of the embedded store hang on."""

import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

from kvplane_services.clock import Clock
from kvplane_services.deadlines import Deadlines
from kvplane_services.store.commits import anchor_gone
from kvplane_services.store.losses import Losses


@dataclass(slots=True)
class _Anchor:
    ttl: float
    kept: bool
    values: dict[str, set[str]] = field(default_factory=dict)


class MemoryAnchors:
    """See `kvplane_services.store.ports.Anchors`.

    Nothing runs here by itself: an anchor that nobody keeps lapses at the first call to the store
    after its time.

    Args:
        clock: Time.
        remove: Removes the values of an anchor that ended: keys by the name of their table.

    """

    def __init__(self, *, clock: Clock, remove: Callable[[Mapping[str, set[str]]], None]) -> None:
        self._clock = clock
        self._remove = remove
        self._numbers = itertools.count(1)
        self._anchors: dict[str, _Anchor] = {}
        self._lapsing = Deadlines()
        self._losses = Losses()

    async def open(self, ttl: float, *, keep: bool = True) -> str:
        """See `Anchors.open`."""
        name = f"memory-{next(self._numbers)}"
        self._anchors[name] = _Anchor(ttl, kept=keep)
        if not keep:
            self._lapsing.set(name, self._clock.now() + ttl)
        return name

    def keep(self, anchor: str, ttl: float) -> None:
        """See `Anchors.keep`."""
        self.lapse()
        found = self._anchors.get(anchor)
        if found is None:
            self._losses.report(anchor)
            return
        found.kept, found.ttl = True, ttl
        self._lapsing.drop(anchor)

    def drop(self, anchor: str) -> None:
        """See `Anchors.drop`."""
        found = self._anchors.get(anchor)
        if found is not None and found.kept:
            found.kept = False
            self._lapsing.set(anchor, self._clock.now() + found.ttl)

    async def revoke(self, anchor: str) -> None:
        """See `Anchors.revoke`."""
        self._end(anchor)

    def lost(self) -> AsyncIterator[str]:
        """See `Anchors.lost`."""
        return self._losses.read()

    def lapse(self) -> None:
        """Ends the anchors whose time has come. For the store."""
        for name in self._lapsing.pop_due(self._clock.now()):
            self._end(name)

    def check(self, anchor: str) -> None:
        """Raises Unavailable if there is no such anchor. For the store."""
        if anchor and anchor not in self._anchors:
            self._losses.report(anchor)
            raise anchor_gone(anchor)

    def move(self, table: str, key: str, *, old: str, new: str) -> None:
        """Notes what a value hangs on; empty for nothing. For the store."""
        if old == new:
            return
        if old in self._anchors:
            self._anchors[old].values[table].discard(key)
        if new:
            self._anchors[new].values.setdefault(table, set()).add(key)

    def _end(self, name: str) -> None:
        self._lapsing.drop(name)
        ended = self._anchors.pop(name, None)
        if ended is not None:
            self._remove(ended.values)
