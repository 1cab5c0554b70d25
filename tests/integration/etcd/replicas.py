"""Stores of several processes on a real etcd, followed over faults."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from kvplane_services.adapters.etcd.store import EtcdStore
from kvplane_services.clock import SystemClock
from kvplane_services.errors import Conflict, Unavailable
from kvplane_services.store.feeds import TableFeed
from kvplane_services.store.model import Removed, Reset, Synced, Upserted
from kvplane_services.store.ports import Table
from tests.support.store_values import TEXTS

PREFIX = "/kvplane/test/"
# Generous, for machines that are busy.
_PATIENCE = 40.0


async def until(found: Callable[[], bool], *, seconds: float = _PATIENCE) -> None:
    """Waits until something is so."""
    async with asyncio.timeout(seconds):
        while not found():
            await SystemClock().sleep(0.01)


@dataclass
class Follower:
    """What a reader of a feed believes, by the feed's own rules.

    Attributes:
        values: Values and their revisions, by key.
        resets: How often it was told to start over.

    """

    table: Table[str]
    values: dict[str, tuple[str, int]] = field(default_factory=dict)
    resets: int = 0
    _unseen: set[str] = field(default_factory=set)
    _resetting: bool = True
    _revision: int = 0

    async def run(self) -> None:
        async for event in TableFeed(table=self.table, clock=SystemClock())():
            match event:
                case Reset():
                    self.resets += 1
                    self._unseen = set(self.values)
                    self._resetting = True
                case Upserted(key=key, value=value, revision=revision):
                    self._check(revision)
                    self._unseen.discard(key)
                    self.values[key] = (value, revision)
                case Removed(key=key, revision=revision):
                    self._check(revision)
                    assert key in self.values, "a key is removed that was never told of"
                    del self.values[key]
                case Synced(revision=revision):
                    for key in self._unseen:
                        del self.values[key]
                    self._unseen = set()
                    self._resetting = False
                    self._revision = revision

    def _check(self, revision: int) -> None:
        if not self._resetting:
            # Several changes of one commit share a revision.
            assert revision >= self._revision, "a change comes out of order"
            self._revision = revision


@dataclass
class Replica:
    """A store of one process, with a follower of its table."""

    store: EtcdStore
    follower: Follower

    @property
    def table(self) -> Table[str]:
        return self.store.table(TEXTS)


@asynccontextmanager
async def following(store: EtcdStore) -> AsyncIterator[Replica]:
    """Follows the store's table inside of the block."""
    follower = Follower(store.table(TEXTS))
    task = asyncio.ensure_future(follower.run())
    try:
        yield Replica(store, follower)
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@dataclass
class Counter:
    """Counts up in a value by compare-and-set, among others who do, over all failures.

    Attributes:
        table: Where.
        counted: Numbers that it knows to have written.
        failures: Attempts that etcd did not answer.

    """

    table: Table[str]
    counted: list[int] = field(default_factory=list)
    failures: int = 0

    async def run(self) -> None:
        while True:
            found = await self.table.get("count")
            number = int(found.value.partition(" ")[0]) + 1 if found else 1
            # A value says who wrote it: another's that is the same would count as its own.
            value = f"{number} {id(self)}"
            try:
                await self.table.put("count", value, expected=found.revision if found else 0)
                await self.table.put(f"seen-{number % 20}", f"{number}")
                self.counted.append(number)
            except Conflict:
                continue
            except Unavailable:
                self.failures += 1
                await asyncio.sleep(0.05)


@asynccontextmanager
async def counting(*replicas: Replica) -> AsyncIterator[list[Counter]]:
    """All of them count inside of the block, until each has counted on after it."""
    counters = [Counter(replica.table) for replica in replicas]
    tasks = [asyncio.ensure_future(counter.run()) for counter in counters]
    try:
        await until(lambda: all(len(counter.counted) > 5 for counter in counters))
        yield counters
        sofar = [len(counter.counted) for counter in counters]
        await until(
            lambda: all(
                len(c.counted) > before + 5 for c, before in zip(counters, sofar, strict=True)
            )
        )
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def agree(fresh: EtcdStore, *replicas: Replica) -> dict[str, str]:
    """Waits until copies and followers hold what a store that was opened just now read."""
    truth = await _held(fresh.table(TEXTS))
    for replica in replicas:
        await until(lambda replica=replica: replica.follower.values == truth)  # type: ignore[misc]
        assert await _held(replica.table) == truth
    return {key: value for key, (value, _) in truth.items()}


async def _held(table: Table[str]) -> dict[str, tuple[str, int]]:
    return {item.key: (item.value, item.revision) for item in (await table.list()).items}
