"""Anchors as etcd's leases, all kept alive over one stream."""

import asyncio
import heapq
import itertools
import logging
import math
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

from kvplane.client.backoff import Backoff
from kvplane_services.adapters.etcd.backend import EtcdBackend
from kvplane_services.adapters.etcd.contact import Contact
from kvplane_services.clock import Clock, wait_set
from kvplane_services.errors import StoreRefused, Unavailable
from kvplane_services.store.losses import Losses

_log = logging.getLogger(__name__)

# An anchor is renewed every third of its TTL, a little earlier at times, so that those which were
# made together do not stay together.
_SHARE = 1 / 3
_EARLY = 0.8
# Seconds over which renewals spread after the stream was down.
_SPREAD = 1.0
_IDLE = 3600.0


@dataclass(slots=True)
class _Kept:
    ttl: float
    due: float


class EtcdAnchors:
    """See `kvplane_services.store.ports.Anchors`. An anchor's name is its etcd lease's id, in hex.

    etcd rounds TTLs up to its own minimum, about two seconds.

    Args:
        backend: The etcd client.
        contact: What is told of failures.
        clock: Times renewals.
        uniform: Draws a number between its two arguments.

    """

    def __init__(
        self,
        *,
        backend: EtcdBackend,
        contact: Contact,
        clock: Clock,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._backend = backend
        self._contact = contact
        self._clock = clock
        self._uniform = uniform
        self._kept: dict[int, _Kept] = {}
        # When whose renewal is due, with some that changed since.
        self._queue: list[tuple[float, int, int]] = []
        self._numbers = itertools.count()
        # Leases to be asked for once, though nobody keeps them.
        self._asked: deque[int] = deque()
        self._changed = asyncio.Event()
        self._losses = Losses()

    async def open(self, ttl: float, *, keep: bool = True) -> str:
        """See `Anchors.open`."""
        lease = await self._contact.ask(self._backend.grant(max(1, math.ceil(ttl))))
        if keep:
            self._keep(lease, ttl, first=self._interval(ttl))
        return f"{lease:x}"

    def keep(self, anchor: str, ttl: float) -> None:
        """See `Anchors.keep`."""
        lease = lease_of(anchor)
        if lease is None:
            # Of another kind of store.
            self._losses.report(anchor)
        elif lease not in self._kept:
            # Nobody knows when it was last renewed.
            self._keep(lease, ttl, first=0.0)

    def drop(self, anchor: str) -> None:
        """See `Anchors.drop`."""
        lease = lease_of(anchor)
        if lease is not None:
            self._kept.pop(lease, None)

    async def revoke(self, anchor: str) -> None:
        """See `Anchors.revoke`."""
        self.drop(anchor)
        lease = lease_of(anchor)
        if lease is not None:
            await self._contact.ask(self._backend.revoke(lease))

    def lost(self) -> AsyncIterator[str]:
        """See `Anchors.lost`."""
        return self._losses.read()

    def suspect(self, anchors: Iterable[str]) -> None:
        """Notes that etcd refused a write since one of these is gone. For tables."""
        suspects = set(anchors)
        if len(suspects) == 1:
            self._lose(suspects.pop())
            return
        for anchor in suspects:
            lease = lease_of(anchor)
            if lease is None:
                self._losses.report(anchor)
            else:
                self._asked.append(lease)
        self._changed.set()

    async def run(self) -> None:
        """Renews what is kept, until cancelled."""
        backoff = Backoff(first=0.2, longest=5.0, uniform=self._uniform)
        while True:
            while not self._queue and not self._asked:
                self._changed.clear()
                await self._changed.wait()
            try:
                async for lease, left in self._backend.keep_alive(self._due()):
                    backoff.reset()
                    if left <= 0:
                        self._lose(f"{lease:x}")
            except (Unavailable, StoreRefused) as error:
                self._contact.failed(error)
            await self._contact.pause(backoff.next())
            self._renew_all()

    async def _due(self) -> AsyncIterator[int]:
        """Leases as their renewals come due."""
        while True:
            while self._asked:
                yield self._asked.popleft()
            now = self._clock.now()
            while self._queue and self._queue[0][0] <= now:
                due, _, lease = heapq.heappop(self._queue)
                kept = self._kept.get(lease)
                if kept is not None and kept.due == due:
                    self._plan(lease, kept, now + self._interval(kept.ttl))
                    yield lease
            self._changed.clear()
            wait = self._queue[0][0] - now if self._queue else _IDLE
            await wait_set(self._changed, wait, clock=self._clock)

    def _renew_all(self) -> None:
        # Nobody knows which of the renewals that were sent last arrived.
        self._queue.clear()
        now = self._clock.now()
        for lease, kept in self._kept.items():
            longest = min(_SPREAD, kept.ttl * _SHARE / 2)
            self._plan(lease, kept, now + self._uniform(0.0, longest))

    def _keep(self, lease: int, ttl: float, *, first: float) -> None:
        kept = self._kept[lease] = _Kept(ttl, 0.0)
        self._plan(lease, kept, self._clock.now() + first)
        self._changed.set()

    def _plan(self, lease: int, kept: _Kept, due: float) -> None:
        kept.due = due
        heapq.heappush(self._queue, (due, next(self._numbers), lease))

    def _interval(self, ttl: float) -> float:
        return ttl * _SHARE * self._uniform(_EARLY, 1.0)

    def _lose(self, anchor: str) -> None:
        self.drop(anchor)
        # There are as many as engines, and who kept it puts back what hung on it.
        _log.debug("etcd no longer has the lease %s: what hung on it is gone", anchor)
        self._losses.report(anchor)


def lease_of(anchor: str) -> int | None:
    """The etcd lease of an anchor; None if it is no anchor of etcd's."""
    try:
        return int(anchor, 16) or None
    except ValueError:
        return None
