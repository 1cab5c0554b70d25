"""What follows keys over outages, and what writes them, as the store does."""

import asyncio
from collections.abc import Callable

from kvplane_services.adapters.etcd.backend import Changed, Compare, Deleted, EtcdBackend, PutOp
from kvplane_services.clock import SystemClock
from kvplane_services.errors import Unavailable

# Generous, for machines that are busy.
_PATIENCE = 40.0


async def until(found: Callable[[], bool]) -> None:
    """Waits until something is so, for at most `_PATIENCE` seconds."""
    async with asyncio.timeout(_PATIENCE):
        while not found():
            await SystemClock().sleep(0.01)


class Follower:
    """Watches a prefix, and again from after what it got last when a watch breaks.

    Attributes:
        events: What it got, in order.
        watches: How many watches have stood.

    """

    def __init__(self, backend: EtcdBackend, prefix: bytes, *, start_revision: int) -> None:
        self.events: list[Changed | Deleted] = []
        self.watches = 0
        self._backend = backend
        self._prefix = prefix
        self._next = start_revision

    def values(self) -> list[bytes]:
        """What was written, in order."""
        return [event.item.value for event in self.events if isinstance(event, Changed)]

    async def run(self) -> None:
        """Follows until cancelled."""
        while True:
            try:
                await self._watch()
            except Unavailable:
                await SystemClock().sleep(0.05)

    async def _watch(self) -> None:
        first = True
        async for batch in self._backend.watch(self._prefix, start_revision=self._next):
            self.watches += first
            first = False
            assert batch.header.revision >= self._next - 1
            self._next = batch.header.revision + 1
            self.events.extend(batch.events)


class Writer:
    """Counts up under one key, by compare-and-set, over every outage.

    Attributes:
        written: Numbers that are known to have been written, in order.
        failures: How many attempts failed.

    """

    def __init__(self, backend: EtcdBackend, key: bytes) -> None:
        self.written: list[bytes] = []
        self.failures = 0
        self._backend = backend
        self._key = key
        self._stopping = False

    def stop(self) -> None:
        """Ends `run` after the write that it is at, so that all that was written is known."""
        self._stopping = True

    async def run(self) -> None:
        """Writes until stopped, or cancelled: a write that is cancelled may have been done."""
        count = 0
        while not self._stopping:
            count += 1
            value = b"%d" % count
            while not await self._write(value):
                self.failures += 1
                await SystemClock().sleep(0.05)
            self.written.append(value)
            await SystemClock().sleep(0.002)

    async def _write(self, value: bytes) -> bool:
        try:
            _, found = await self._backend.get(self._key)
            if found is not None and found.value == value:
                return True  # An attempt whose answer was lost had written it.
            compares = [Compare(self._key, found.mod_revision if found else 0)]
            done = await self._backend.txn(compares, [PutOp(self._key, value)])
        except Unavailable:
            return False
        return done.succeeded
