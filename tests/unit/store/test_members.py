"""Who is alive, and who looks after what."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kvplane_services.adapters.memory import MemoryStore
from kvplane_services.adapters.records import MEMBERS
from kvplane_services.store.members import Member, Members, keeper_of
from tests.support.clock import FakeClock
from tests.support.cut_store import CutStore, SharedStore

REGISTRY = Member(("registry",))


class Crowd:
    """Members on one store, which each can be cut from."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.shared = SharedStore(clock=self.clock)

    def member(self, name: str, member: Member = REGISTRY) -> tuple[Members, CutStore]:
        store = self.shared.replica()
        table, anchors = store.table(MEMBERS), store.anchors
        return (
            Members(member_id=name, member=member, table=table, anchors=anchors, clock=self.clock),
            store,
        )

    @asynccontextmanager
    async def running(self, *members: Members) -> AsyncIterator[list[asyncio.Task[None]]]:
        tasks = [asyncio.create_task(member.run()) for member in members]
        await self.advance(0.5)
        try:
            yield tasks
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def advance(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.25)):
            await self.clock.advance(0.25)
            self.shared.lapse()
        await self.clock.advance(0)


async def test_members_know_each_other_by_role() -> None:
    """Each counts those that have a role, itself included."""
    crowd = Crowd()
    a, _ = crowd.member("a")
    b, _ = crowd.member("b", Member(("leases", "registry")))

    assert a.live("registry") == ("a",)
    async with crowd.running(a, b):
        assert a.live("registry") == b.live("registry") == ("a", "b")
        assert a.live("leases") == ("b",)


async def test_a_member_that_stops_is_gone_at_once() -> None:
    """Nobody waits for the anchor of a process that was asked to stop."""
    crowd = Crowd()
    a, _ = crowd.member("a")
    b, _ = crowd.member("b")
    heard: list[tuple[str, ...]] = []
    a.listen(lambda: heard.append(a.live("registry")))
    async with crowd.running(a, b) as (_, second):
        second.cancel()
        await crowd.advance(0.25)

        assert a.live("registry") == ("a",)
    assert heard == [("a", "b"), ("a",)]
    assert not crowd.shared.memory.table(MEMBERS)._copy


async def test_a_member_that_dies_vanishes_with_its_anchor() -> None:
    """A process that the store hears nothing of is no member, and is one again once it is back."""
    crowd = Crowd()
    a, _ = crowd.member("a")
    b, store = crowd.member("b")
    async with crowd.running(a, b):
        store.cut()
        await crowd.advance(9)
        assert a.live("registry") == ("a", "b")
        await crowd.advance(3)
        assert a.live("registry") == ("a",)
        assert b.live("registry") == ("a", "b")

        store.heal()
        await crowd.advance(3)

        assert a.live("registry") == b.live("registry") == ("a", "b")


async def test_members_put_themselves_back_when_the_store_loses_them() -> None:
    """Those who were there before go on counting until they have had time to."""
    crowd = Crowd()
    a, _ = crowd.member("a")
    b, _ = crowd.member("b")
    gone, _ = crowd.member("gone")
    async with crowd.running(a, b, gone) as (_, _, third):
        third.cancel()
        crowd.shared.lose_everything()
        await crowd.clock.advance(0)
        assert a.live("registry") == ("a", "b", "gone")
        await crowd.advance(5)
        assert a.live("registry") == ("a", "b", "gone")
        await crowd.advance(6)
        assert a.live("registry") == b.live("registry") == ("a", "b")
        assert set(crowd.shared.memory.table(MEMBERS)._copy._items) == {"a", "b"}


async def test_alone_on_the_embedded_store() -> None:
    """A plane of one process looks after everything."""
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    alone = Members(
        member_id="a",
        member=REGISTRY,
        table=store.table(MEMBERS),
        anchors=store.anchors,
        clock=clock,
    )
    task = asyncio.create_task(alone.run())
    await clock.advance(0)

    assert keeper_of("sessions/t:m::s", alone.live("registry")) == "a"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_work_is_spread_and_moves_only_where_it_must() -> None:
    """Members share evenly, and one that goes gives what it had to all others alike."""
    names = [f"sessions/t:m::{number}" for number in range(3000)]
    before = {name: keeper_of(name, ["a", "b", "c"]) for name in names}
    after = {name: keeper_of(name, ["c", "a"]) for name in names}

    assert all(800 < count < 1200 for count in Counter(before.values()).values())
    assert all(before[name] in {"b", after[name]} for name in names)
    moved = Counter(after[name] for name in names if before[name] == "b")
    assert all(400 < count < 600 for count in moved.values())
