"""An etcd in this process, on a clock of the test's own, with its faults.

It keeps to what tests/contract/etcd_backend holds real etcd to.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from kvplane_services.adapters.etcd.backend import (
    Changed,
    CompactedError,
    Compare,
    Deleted,
    DeleteOp,
    Header,
    KeyValue,
    LeaseGone,
    PutOp,
    RangeResult,
    TxnResult,
    WatchBatch,
)
from kvplane_services.clock import Clock, wait_set
from kvplane_services.errors import Unavailable

_IDLE = 3600.0


@dataclass(slots=True)
class _Lease:
    ttl: int
    until: float
    keys: set[bytes] = field(default_factory=set)


class FakeEtcd:
    """The server. `client()` gives each process its own way to it.

    Attributes:
        away: Whether it refuses calls and breaks streams.
        silent: Whether it takes calls and answers none.
        quiet_watches: Whether open watches are told nothing for now.
        txns: Transactions that were done.

    """

    def __init__(self, *, clock: Clock) -> None:
        self.clock = clock
        self.away = False
        self.silent = False
        self.quiet_watches = False
        self.txns = 0
        self.cluster_id = 1
        # Set, and replaced, when something changes.
        self.moved = asyncio.Event()
        self._numbers = itertools.count(0x1000)
        self._start_anew()

    def client(self) -> "FakeClient":
        """A process's way to it."""
        return FakeClient(self)

    # -- Faults ----------------------------------------------------------------------------------

    def set(self, **faults: bool) -> None:
        """Sets or ends faults by their names."""
        for name, value in faults.items():
            assert isinstance(getattr(self, name), bool)
            setattr(self, name, value)
        self.move()

    def lose_data(self) -> None:
        """Goes on as an etcd that was set up anew, under the same names."""
        self._start_anew()
        self.move()

    def compact(self) -> None:
        """Forgets all history but the newest revision."""
        self.compacted = self.revision
        self.log.clear()
        self.move()

    def end_lease(self, lease: int) -> None:
        """Removes a lease and its keys."""
        ended = self.leases.pop(lease, None)
        if ended is not None and ended.keys:
            self.write([DeleteOp(key) for key in sorted(ended.keys)])

    def lapse(self) -> None:
        """Ends the leases whose time is up; etcd standing still ends none."""
        if self.away or self.silent:
            return
        for number, lease in tuple(self.leases.items()):
            if lease.until <= self.clock.now():
                self.end_lease(number)

    # -- State -----------------------------------------------------------------------------------

    def _start_anew(self) -> None:
        self.revision = 1
        self.compacted = 0
        self.generation = next(self._numbers)
        self.items: dict[bytes, KeyValue] = {}
        self.leases: dict[int, _Lease] = {}
        self.log: list[tuple[int, tuple[Changed | Deleted, ...]]] = []

    @property
    def header(self) -> Header:
        return Header(self.cluster_id, self.revision)

    def move(self) -> None:
        """Wakes up whoever waits for something to change."""
        self.moved.set()
        self.moved = asyncio.Event()

    def next_lapse(self) -> float:
        """Seconds until the next lease is over, if nobody renews it."""
        left = [lease.until - self.clock.now() for lease in self.leases.values()]
        return max(0.001, min(left, default=_IDLE))

    def grant(self, ttl: int) -> int:
        number = next(self._numbers)
        self.leases[number] = _Lease(ttl, self.clock.now() + ttl)
        return number

    def renew(self, number: int) -> int:
        lease = self.leases.get(number)
        if lease is None:
            return 0
        lease.until = self.clock.now() + lease.ttl
        return lease.ttl

    def write(self, operations: Sequence[PutOp | DeleteOp]) -> tuple[bool, ...]:
        """Does all operations at one revision; tells of each DeleteOp whether there was a key."""
        revision = self.revision + 1
        deleted: list[bool] = []
        events: list[Changed | Deleted] = []
        for operation in operations:
            held = self.items.pop(operation.key, None)
            if held is not None and held.lease in self.leases:
                self.leases[held.lease].keys.discard(operation.key)
            if isinstance(operation, PutOp):
                created = held.create_revision if held else revision
                item = KeyValue(operation.key, operation.value, created, revision, operation.lease)
                self.items[item.key] = item
                if item.lease:
                    self.leases[item.lease].keys.add(item.key)
                events.append(Changed(item))
            else:
                deleted.append(held is not None)
                if held is not None:
                    events.append(Deleted(operation.key, revision))
        if events:
            self.revision = revision
            self.log.append((revision, tuple(events)))
            self.move()
        return tuple(deleted)


class FakeClient:
    """See `EtcdBackend`."""

    # Seconds that a call waits for a silent server.
    timeout = 2.0

    def __init__(self, etcd: FakeEtcd) -> None:
        self._etcd = etcd

    async def connect(self) -> Header:
        await self._reach()
        return self._etcd.header

    async def close(self) -> None:
        pass

    async def get(self, key: bytes) -> tuple[Header, KeyValue | None]:
        await self._reach()
        return self._etcd.header, self._etcd.items.get(key)

    async def range(self, prefix: bytes) -> RangeResult:
        await self._reach()
        items = self._etcd.items
        found = tuple(items[key] for key in sorted(items) if key.startswith(prefix))
        return RangeResult(self._etcd.header, found)

    async def pages(self, prefix: bytes) -> AsyncIterator[RangeResult]:
        found = await self.range(prefix)
        yield RangeResult(found.header, found.items[:10])
        for first in range(10, len(found.items), 10):
            await self._reach()
            if self._etcd.compacted > found.header.revision:
                raise CompactedError(found.header.revision)
            yield RangeResult(found.header, found.items[first : first + 10])

    async def txn(
        self, compares: Sequence[Compare], operations: Sequence[PutOp | DeleteOp]
    ) -> TxnResult:
        await self._reach()
        etcd = self._etcd
        held = {compare.key: etcd.items.get(compare.key) for compare in compares}
        if any(_revision(held[compare.key]) != compare.mod_revision for compare in compares):
            found = tuple(item for item in held.values() if item is not None)
            return TxnResult(etcd.header, succeeded=False, found=found)
        leases = {op.lease for op in operations if isinstance(op, PutOp)} - {0}
        if not leases <= etcd.leases.keys():
            raise LeaseGone
        etcd.txns += 1
        deleted = etcd.write(operations)
        result = TxnResult(etcd.header, succeeded=True, deleted=deleted)
        # The answer takes a while, and the events of the write may be there before it.
        await self._reach()
        return result

    async def watch(self, prefix: bytes, *, start_revision: int) -> AsyncIterator[WatchBatch]:
        await self._reach()
        etcd = self._etcd
        generation, after = etcd.generation, start_revision - 1
        if not etcd.compacted <= after <= etcd.revision:
            raise CompactedError(etcd.revision)
        yield WatchBatch(Header(etcd.cluster_id, after), ())
        while True:
            moved = etcd.moved
            etcd.lapse()
            if etcd.away or etcd.generation != generation:
                raise Unavailable("the watch broke", retry_after=1.0)
            if after < etcd.compacted:
                raise CompactedError(etcd.revision)
            if not etcd.quiet_watches and not etcd.silent:
                for revision, events in tuple(etcd.log):
                    wanted = tuple(e for e in events if _key(e).startswith(prefix))
                    if revision > after:
                        after = revision
                        yield WatchBatch(Header(etcd.cluster_id, revision), wanted)
            await wait_set(moved, etcd.next_lapse(), clock=etcd.clock)

    async def grant(self, ttl: int) -> int:
        await self._reach()
        return self._etcd.grant(ttl)

    async def keep_alive(self, leases: AsyncIterator[int]) -> AsyncIterator[tuple[int, int]]:
        await self._reach()
        async for lease in leases:
            await self._reach()
            yield lease, self._etcd.renew(lease)

    async def revoke(self, lease: int) -> None:
        await self._reach()
        self._etcd.end_lease(lease)

    async def _reach(self) -> None:
        """A call's way there or back."""
        await self._etcd.clock.sleep(0)
        etcd = self._etcd
        if etcd.silent:
            answered = asyncio.ensure_future(self._until_answering())
            waited = asyncio.ensure_future(etcd.clock.sleep(self.timeout))
            try:
                await asyncio.wait((answered, waited), return_when=asyncio.FIRST_COMPLETED)
            finally:
                answered.cancel()
                waited.cancel()
                await asyncio.gather(answered, waited, return_exceptions=True)
        etcd.lapse()
        if etcd.away or etcd.silent:
            raise Unavailable("etcd does not answer", retry_after=1.0)

    async def _until_answering(self) -> None:
        while self._etcd.silent:
            await self._etcd.moved.wait()


def _key(event: Changed | Deleted) -> bytes:
    return event.item.key if isinstance(event, Changed) else event.key


def _revision(item: KeyValue | None) -> int:
    return item.mod_revision if item else 0
