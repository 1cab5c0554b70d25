import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kvplane.api.engine.v1 import engine_pb2
from kvplane.api.lease.v1 import lease_pb2
from kvplane.client import calls
from kvplane.client.errors import error_of
from kvplane_services.adapters.grpc_feeds import engine_feed, lease_feed
from kvplane_services.engine.wire import engine_to_wire
from kvplane_services.lease.model import EndReason, LeaseState
from kvplane_services.lease.wire import lease_to_wire
from kvplane_services.store.model import Event, Removed, Reset, Synced, Upserted
from tests.support.clock import FakeClock
from tests.unit.router.fleet import decode, lease


class FakeWatch:
    """A client's watch that sends what it was given, then fails or goes on in silence."""

    def __init__(self, *rounds: list[Any]) -> None:
        self._rounds = list(rounds)

    async def watch(self) -> AsyncIterator[Any]:
        for event in self._rounds.pop(0):
            if isinstance(event, Exception):
                raise event
            yield event


class FakePlane:
    def __init__(self, watch: FakeWatch) -> None:
        self.engines = self.leases = watch


async def first(count: int, feed: AsyncIterator[Event[Any]]) -> list[Event[Any]]:
    events: list[Event[Any]] = []
    while len(events) < count:
        events.append(await anext(feed))
    return events


async def test_engines_are_translated() -> None:
    """Engines come by id, as what they were registered as."""
    plane: Any = FakePlane(
        FakeWatch(
            [
                calls.Upserted(engine_to_wire(decode("d")), 5),
                calls.Synced(6),
                calls.Removed("engines/d", None, 7),
                calls.Reset(),
            ]
        )
    )
    events = await first(4, engine_feed(plane, clock=FakeClock())())
    assert events == [Upserted("d", decode("d"), 5), Synced(6), Removed("d", 7), Reset()]


async def test_ended_lease_says_why_and_is_then_removed() -> None:
    """The end of a lease is told with its reason before it is forgotten."""
    message = lease_to_wire(lease())
    ended = lease_to_wire(lease())
    ended.state = ended.STATE_ENDED
    ended.end_reason = lease_pb2.END_REASON_RECLAIMED
    plane: Any = FakePlane(
        FakeWatch([calls.Upserted(message, 1), calls.Removed("leases/l1", ended, 2)])
    )
    granted, end, gone = await first(3, lease_feed(plane, clock=FakeClock())())
    assert isinstance(granted, Upserted)
    assert granted.key == "l1"
    assert isinstance(end, Upserted)
    assert (end.value.state, end.value.end_reason) == (LeaseState.ENDED, EndReason.RECLAIMED)
    assert gone == Removed("l1", 2)


@pytest.mark.parametrize(
    "trouble",
    [
        error_of("UNIMPLEMENTED", "not a lease manager"),
        calls.Upserted(engine_pb2.Engine(name="nonsense"), 1),
    ],
)
async def test_feed_goes_on_after_trouble(trouble: Any) -> None:
    """A refusal, or an answer that makes no sense, starts the feed over after a pause."""
    clock = FakeClock()
    plane: Any = FakePlane(FakeWatch([trouble], [calls.Synced(9)]))
    feed = engine_feed(plane, clock=clock)()
    async with asyncio.TaskGroup() as tasks:
        events = tasks.create_task(first(2, feed))
        await clock.wait_for_sleepers()
        await clock.advance(1)
    assert events.result() == [Reset(), Synced(9)]


async def test_pause_is_short_again_after_a_full_state() -> None:
    """Pauses grow while nothing comes, and start over once a full state was delivered."""
    clock = FakeClock()
    refused = error_of("UNIMPLEMENTED", "not a lease manager")
    plane: Any = FakePlane(
        FakeWatch(*[[refused]] * 5, [calls.Synced(8), refused], [calls.Synced(9)])
    )
    synced: list[float] = []

    async def follow() -> None:
        async for event in engine_feed(plane, clock=clock)():
            if isinstance(event, Synced):
                synced.append(clock.now())
            if event == Synced(9):
                return

    started = clock.now()
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(follow())
        while not following.done():
            await clock.advance(0.25)
    assert synced[0] - started >= 15
    assert synced[1] - synced[0] <= 1.25
