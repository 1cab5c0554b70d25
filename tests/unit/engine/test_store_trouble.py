"""A store that is away, and one that lost what it held."""

import asyncio

import pytest

from kvplane_services.adapters.records import ENGINES
from kvplane_services.engine.answers import HeartbeatOutcome
from kvplane_services.engine.model import EngineLoad, EngineState
from kvplane_services.errors import (
    Unavailable,
)
from tests.support.engine_fleet import ALIVE, LOAD, Fleet
from tests.support.state_values import engine_of


async def test_heartbeats_are_answered_while_the_store_is_away(fleet: Fleet) -> None:
    """From memory, at once; new loads are written later, and nobody is lost."""
    engine = await fleet.register(0)
    fleet.stores[0].cut(hangs=5.0)

    for tick in range(40):
        answer = asyncio.ensure_future(fleet.beat(0, engine, EngineLoad(running_requests=tick)))
        await fleet.clock.advance(0)
        assert answer.done()
        assert answer.result().outcome is HeartbeatOutcome.RENEWED
        await fleet.advance(1)

    fleet.stores[0].heal()
    await fleet.live(0, engine, 10)
    assert fleet.states() == ALIVE
    assert fleet.planes[1].directory.get("d0").load.running_requests == 39


async def test_a_store_that_hangs_holds_no_heartbeat_for_long(fleet: Fleet) -> None:
    """Not even before anybody has noticed that it is away."""
    engine = await fleet.register(0)
    fleet.stores[0].cut(hangs=5.0, notices=False)

    answer = asyncio.ensure_future(fleet.beat(0, engine, LOAD))
    await fleet.settle()
    assert not answer.done()
    await fleet.clock.advance(0.25)

    assert answer.done()
    fleet.stores[0].heal()


async def test_what_needs_the_store_is_refused_while_it_is_away(fleet: Fleet) -> None:
    """Registering and moving home; nothing of it is done by half."""
    engine = await fleet.register(0)
    for store in fleet.stores:
        store.cut()

    with pytest.raises(Unavailable):
        await fleet.planes[1].directory.register(engine_of("d1"))
    with pytest.raises(Unavailable):
        await fleet.beat(1, engine)
    with pytest.raises(Unavailable):
        await fleet.planes[1].directory.drain("d0")

    assert (await fleet.beat(0, engine)).outcome is HeartbeatOutcome.RENEWED
    for store in fleet.stores:
        store.heal()
    await fleet.live(0, engine, 3)
    assert fleet.states("d1") == [None] * 3
    assert fleet.home("d1") == [False] * 3


async def test_an_engine_that_falls_silent_while_the_store_is_away(fleet: Fleet) -> None:
    """Its home knows at its TTL, and tells the others once the store is back."""
    await fleet.register(0)
    fleet.stores[0].cut()
    await fleet.advance(16)
    assert fleet.states()[0] is EngineState.LOST

    fleet.stores[0].heal()
    await fleet.advance(3)

    assert fleet.states() == [EngineState.LOST] * 3


async def test_a_store_that_lost_its_data_gets_everything_back(fleet: Fleet) -> None:
    """Live and lost engines alike, from their homes, with their epochs."""
    one = await fleet.register(0, engine_of("d0"))
    two = await fleet.register(1, engine_of("d1"))
    await fleet.register(2, engine_of("d2"), ttl=3.0)
    await fleet.planes[0].directory.drain("d1")
    await fleet.advance(4)
    assert fleet.states("d2") == [EngineState.LOST] * 3

    fleet.shared.lose_everything()
    for _ in range(5):
        assert (await fleet.beat(0, one)).outcome is HeartbeatOutcome.RENEWED
        assert (await fleet.beat(1, two)).outcome is HeartbeatOutcome.RENEWED
        await fleet.advance(1)

    assert fleet.states("d0") == ALIVE
    assert fleet.states("d1") == [EngineState.DRAINING] * 3
    assert fleet.states("d2") == [EngineState.LOST] * 3
    assert fleet.planes[2].directory.get("d0").epoch == one.epoch
    assert (await fleet.register(1, engine_of("d0"))).epoch > one.epoch


async def test_an_engine_that_moves_while_it_is_put_back(fleet: Fleet) -> None:
    """Nobody took its place, whatever another replica remembers; it is asked to wait."""
    await fleet.register(0, engine_of("d0"))
    fleet.stores[1].cut()
    engine = await fleet.register(0, engine_of("d0"))
    fleet.shared.lose_everything()
    fleet.stores[1].heal()
    await fleet.settle()

    with pytest.raises(Unavailable, match="about to be put back"):
        await fleet.beat(1, engine)
    await fleet.advance(2)

    assert (await fleet.beat(1, engine)).outcome is HeartbeatOutcome.RENEWED


async def test_a_store_that_went_back_in_time(fleet: Fleet) -> None:
    """An engine that registered since is asked to do it again, not to stop."""
    old = await fleet.register(0, engine_of("d0"))
    engine = await fleet.register(0, engine_of("d0"))
    fleet.stores[0].cut()
    fleet.shared.lose_everything()
    await fleet.shared.memory.table(ENGINES).put("d0", old)
    await fleet.settle()

    assert (await fleet.beat(1, engine)).outcome is HeartbeatOutcome.NOT_FOUND


async def test_an_anchor_that_was_lost_is_put_back(fleet: Fleet) -> None:
    """The engine is there again, on another one, and lives."""
    engine = await fleet.register(0)

    fleet.shared.end_anchor(fleet.planes[0].homes.anchor("d0"))
    await fleet.live(0, engine, 40)

    assert fleet.states() == ALIVE
    assert await fleet.stored() is not None


async def test_a_registration_that_vanished_by_itself_is_put_back(fleet: Fleet) -> None:
    """Though its home and its anchor are there."""
    engine = await fleet.register(0)

    fleet.shared.remove("engines", "d0")
    await fleet.live(0, engine, 2)

    assert fleet.states() == ALIVE


async def test_a_home_that_was_put_back_takes_its_engine_along(fleet: Fleet) -> None:
    """The engine does not vanish with the anchor of before."""
    engine = await fleet.register(0)
    fleet.shared.remove("homes", "d0")

    await fleet.live(0, engine, 2)

    assert fleet.hangs_on_its_home("d0")


async def test_a_lost_engine_whose_anchor_was_lost_at_once(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets another one."""
    await fleet.register(0)
    anchors = fleet.stores[0].anchors
    opens, ended = anchors.open, asyncio.Event()

    async def open_one(ttl: float, *, keep: bool = True) -> str:
        name = await opens(ttl, keep=keep)
        if not ended.is_set():
            ended.set()
            fleet.shared.end_anchor(name)
        return name

    monkeypatch.setattr(anchors, "open", open_one)
    await fleet.advance(18)

    assert ended.is_set()
    assert fleet.states() == [EngineState.LOST] * 3
