import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kvplane_services.errors import StoreRefused
from kvplane_services.store.journal import Journal
from kvplane_services.store.write_behind import WriteBehind
from tests.support.clock import FakeClock
from tests.support.cut_store import SharedStore
from tests.support.store_values import TEXTS


class Writer:
    """A journal that is written behind, to a store that can be away."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = SharedStore(clock=self.clock).replica()
        self.table = self.store.table(TEXTS)
        self.journal = Journal(table=self.table)
        self.behind = WriteBehind(
            journal=self.journal,
            reachable=lambda: self.store.reachable,
            clock=self.clock,
            what="texts",
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            loop = tasks.create_task(self.behind.run())
            await self.clock.advance(0)
            yield
            loop.cancel()

    async def settled_after(self, seconds: float) -> bool:
        """Whether `settle` has returned after so long."""
        task = asyncio.ensure_future(self.behind.settle())
        await self.clock.advance(0)
        await self.clock.advance(seconds)
        done = task.done()
        if not done:
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return done


async def test_settling_writes() -> None:
    """Whoever settles finds written what was noted."""
    writer = Writer()
    async with writer.running():
        writer.journal.put("a", "1")

        await writer.behind.settle()

        assert await writer.table.get("a") is not None


async def test_before_it_runs_the_caller_writes() -> None:
    """Nothing has to wait for the loop to start."""
    writer = Writer()
    writer.journal.put("a", "1")

    await writer.behind.settle()

    assert await writer.table.get("a") is not None


async def test_a_store_that_hangs_is_waited_for_a_moment() -> None:
    """Then the caller goes on, and what was noted is written once the store is back."""
    writer = Writer()
    async with writer.running():
        writer.store.cut(hangs=5.0, notices=False)
        writer.journal.put("a", "1")

        assert not await writer.settled_after(0.2)
        assert await writer.settled_after(0.25)

        writer.store.heal()
        await writer.clock.advance(10)
        assert await writer.table.get("a") is not None


async def test_a_store_that_is_away_is_not_waited_for() -> None:
    """Neither where the store says so, nor where it did not answer before."""
    writer = Writer()
    async with writer.running():
        writer.store.cut(hangs=5.0)
        writer.journal.put("a", "1")
        assert await writer.settled_after(0)

        writer.store.notices = False
        await writer.clock.advance(5)
        assert await writer.settled_after(0)


async def test_trouble_is_tried_again_by_itself() -> None:
    """Nobody has to call again for what was noted."""
    writer = Writer()
    async with writer.running():
        writer.store.cut()
        writer.journal.put("a", "1")
        await writer.behind.settle()
        await writer.clock.advance(5)

        writer.store.heal()
        await writer.clock.advance(2)

        assert await writer.table.get("a") is not None


async def test_a_write_that_fails_is_not_waited_for() -> None:
    """It is tried again later; the caller goes on."""
    writer = Writer()
    async with writer.running():
        writer.store.cut(notices=False)
        writer.journal.put("a", "1")

        assert await writer.settled_after(0)


async def test_a_store_that_refuses_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password that is put right needs no restart."""
    writer = Writer()

    async def refuse(*_: object, **__: object) -> int:
        raise StoreRefused("the password is wrong")

    async with writer.running():
        with monkeypatch.context() as patched:
            patched.setattr(writer.table, "commit", refuse)
            writer.journal.put("a", "1")
            assert await writer.settled_after(0)

        await writer.clock.advance(10)

        assert await writer.table.get("a") is not None
