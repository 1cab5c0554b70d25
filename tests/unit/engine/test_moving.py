"""Engines that are told of everywhere, and move between replicas."""

import asyncio
from typing import Any

import pytest

from kvplane_services.adapters.memory import MemorySequence
from kvplane_services.adapters.records import ENGINES
from kvplane_services.engine.answers import HeartbeatAnswer, HeartbeatOutcome
from kvplane_services.engine.model import EngineState, KvLayout, Role
from kvplane_services.errors import (
    Conflict,
    EngineIncompatible,
    Saturated,
    Unavailable,
)
from kvplane_services.store.paging import PageRequest
from tests.support.clock import FakeClock
from tests.support.engine_fleet import ALIVE, LOAD, Fleet
from tests.support.state_values import engine_of


async def test_every_replica_tells_of_every_engine(fleet: Fleet) -> None:
    """An engine is found and listed wherever it registered."""
    await fleet.register(0, engine_of("d0"))
    await fleet.register(1, engine_of("d1"))

    for plane in fleet.planes:
        page = await plane.directory.list(PageRequest())
        assert [engine.engine_id for engine in page.items] == ["d0", "d1"]


async def test_only_its_home_tells_when_an_engine_lapses(fleet: Fleet) -> None:
    """Others know of no heartbeat: what they could tell would be over while the engine lives."""
    engine = await fleet.register(0)
    await fleet.live(0, engine, 30)

    told = [plane.directory.get("d0").expire_time for plane in fleet.planes]
    drained = await fleet.planes[1].directory.drain("d0")
    await fleet.settle()
    listed = [
        (await plane.directory.list(PageRequest())).items[0].expire_time for plane in fleet.planes
    ]
    stored = await fleet.stored()

    assert told[0] is not None
    assert told[0] > fleet.clock.wall()
    assert told[1:] == [None, None]
    assert drained.expire_time is None
    assert listed[0] is not None
    assert listed[1:] == [None, None]
    assert stored is not None
    assert stored.expire_time is None


async def test_partners_are_those_at_other_replicas_too(fleet: Fleet) -> None:
    """What cannot exchange blocks is refused wherever it registers."""
    await fleet.register(0, engine_of("p0", role=Role.PREFILL))

    with pytest.raises(EngineIncompatible):
        await fleet.register(1, engine_of(layout=KvLayout(block_size=128, total_blocks=1)))


async def test_the_number_of_engines_is_bounded_over_all_replicas() -> None:
    """Three replicas hold no more than one."""
    fleet = Fleet(max_engines=1)
    async with fleet.running():
        await fleet.register(0, engine_of("d0"))

        with pytest.raises(Saturated):
            await fleet.register(1, engine_of("d1"))

        await fleet.register(2, engine_of("d0"))


async def test_a_heartbeat_elsewhere_moves_the_engine(fleet: Fleet) -> None:
    """It goes on there with its epoch, its TTL and its load, and nobody calls it lost."""
    engine = await fleet.register(0, ttl=9.0)
    await fleet.beat(0, engine, LOAD)
    await fleet.settle()

    answer = await fleet.beat(1, engine)
    await fleet.settle()

    assert answer.outcome is HeartbeatOutcome.RENEWED
    assert answer.ttl == 9.0
    assert answer.engine is not None
    assert (answer.engine.epoch, answer.engine.load) == (engine.epoch, LOAD)
    assert fleet.home() == [False, True, False]
    await fleet.live(1, engine, 30)
    assert fleet.states() == ALIVE


async def test_an_engine_moves_before_others_have_seen_it(fleet: Fleet) -> None:
    """Its new home asks the store itself when its copy does not know."""
    fleet.stores[1].table(ENGINES).freeze()
    engine = (await fleet.planes[0].directory.register(engine_of())).engine
    fleet.stores[1].table(ENGINES).thaw()

    assert (await fleet.beat(1, engine)).outcome is HeartbeatOutcome.RENEWED


async def test_a_registration_elsewhere_fences_the_old_one_everywhere(fleet: Fleet) -> None:
    """Whichever replica a frame of the old epoch comes to."""
    old = await fleet.register(0)
    new = await fleet.register(1)

    outcomes = [(await fleet.beat(at, old)).outcome for at in range(3)]

    assert new.epoch > old.epoch
    assert outcomes == [HeartbeatOutcome.FENCED] * 3
    assert fleet.home() == [False, True, False]
    assert (await fleet.beat(0, new)).outcome is HeartbeatOutcome.RENEWED


async def test_a_new_epoch_is_never_fenced_by_an_old_copy(fleet: Fleet) -> None:
    """A replica that has not seen the registration says so, and not that it is over."""
    await fleet.register(0)
    fleet.stores[0].table(ENGINES).freeze()
    new = (await fleet.planes[1].directory.register(engine_of())).engine
    fleet.stores[0].table(ENGINES).thaw()

    with pytest.raises(Unavailable):
        await fleet.beat(0, new)

    await fleet.settle()
    assert (await fleet.beat(0, new)).outcome is HeartbeatOutcome.RENEWED


async def test_a_replica_that_died_is_survived(fleet: Fleet) -> None:
    """An engine that finds another within its TTL goes on with its registration."""
    engine = await fleet.register(0)
    fleet.stores[0].cut()
    await fleet.advance(14)

    assert (await fleet.beat(1, engine)).outcome is HeartbeatOutcome.RENEWED
    await fleet.live(1, engine, 60)

    assert (await fleet.stored()) is not None
    assert fleet.states()[1:] == ALIVE[1:]


async def test_an_engine_that_died_with_its_home_vanishes(fleet: Fleet) -> None:
    """Nobody calls it lost, and nobody tells of it for ever."""
    await fleet.register(0)
    fleet.stores[0].cut()

    await fleet.advance(40)

    assert fleet.states()[1:] == [None, None]


async def test_a_vanished_engine_that_beats_again_is_put_back(fleet: Fleet) -> None:
    """The store may have lost it: a live engine keeps its epoch."""
    engine = await fleet.register(0)
    fleet.stores[0].cut()
    fleet.shared.end_anchor(fleet.planes[0].homes.anchor("d0"))
    await fleet.settle()
    assert fleet.states()[1:] == [None, None]

    assert (await fleet.beat(1, engine)).outcome is HeartbeatOutcome.RENEWED
    await fleet.settle()

    assert fleet.states()[1:] == ALIVE[1:]
    stored = await fleet.stored()
    assert stored is not None
    assert stored.epoch == engine.epoch


async def test_only_its_home_calls_an_engine_lost(fleet: Fleet) -> None:
    """And all see it; then it has to register again, anywhere."""
    engine = await fleet.register(0)

    await fleet.advance(16)

    assert fleet.states() == [EngineState.LOST] * 3
    assert (await fleet.beat(1, engine)).outcome is HeartbeatOutcome.NOT_FOUND
    await fleet.register(2)
    assert fleet.states() == ALIVE


async def test_an_engine_that_moves_after_it_was_lost(fleet: Fleet) -> None:
    """It has to register again, though its new home had not seen the loss; it is not forgotten."""
    engine = await fleet.register(0)
    fleet.stores[1].table(ENGINES).freeze()
    await fleet.advance(16)

    assert (await fleet.beat(1, engine)).outcome is HeartbeatOutcome.NOT_FOUND
    fleet.stores[1].table(ENGINES).thaw()
    await fleet.advance(60)

    assert fleet.states() == [EngineState.LOST] * 3


async def test_a_lost_engine_is_forgotten_though_its_home_dies() -> None:
    """Its record lapses by itself."""
    fleet = Fleet(remember_lost=60)
    async with fleet.running():
        await fleet.register(0)
        await fleet.advance(16)
        fleet.stores[0].cut()

        await fleet.advance(50)
        assert fleet.states()[1:] == [EngineState.LOST] * 2
        await fleet.advance(20)

        assert fleet.states()[1:] == [None, None]


async def test_a_lost_engine_is_forgotten_by_its_home() -> None:
    """Nothing of it stays in the store."""
    fleet = Fleet(remember_lost=60)
    async with fleet.running():
        await fleet.register(0)
        await fleet.advance(90)

        assert fleet.states() == [None] * 3
        assert not fleet.planes[0].homes.is_home("d0")
        assert not fleet.left()
        assert all(anchor.ttl != 60 for anchor in fleet.shared.anchors.values())


async def test_a_cut_replica_calls_nobody_lost_who_moved(fleet: Fleet) -> None:
    """What it believed meanwhile is not written when it comes back."""
    engine = await fleet.register(0)
    fleet.stores[0].cut()
    await fleet.live(1, engine, 20)
    assert fleet.states()[0] is EngineState.LOST

    fleet.stores[0].heal()
    for _ in range(10):
        await fleet.live(1, engine, 1)
        stored = await fleet.stored()
        assert stored is not None
        assert stored.state is EngineState.ACTIVE

    assert fleet.states() == ALIVE
    assert fleet.home() == [False, True, False]


async def test_a_replica_that_knows_of_nothing_writes_nothing_over_the_new_home() -> None:
    """Neither a load nor a loss: the store refuses what comes from a home of before."""
    fleet = Fleet()  # No loop runs: nobody tells the old home.
    old, new = (plane.directory for plane in fleet.planes[:2])
    engine = await fleet.register(0)
    fleet.stores[0].cut()
    await old.heartbeat("d0", engine.epoch, LOAD)
    await new.heartbeat("d0", engine.epoch)

    fleet.stores[0].heal()
    await old.sweep()
    stored = await fleet.stored()
    assert stored is not None
    assert stored.load != LOAD

    await fleet.clock.advance(16)
    await old.sweep()
    await old.sweep()
    assert old.get("d0").state is EngineState.LOST
    stored = await fleet.stored()
    assert stored is not None
    assert stored.state is EngineState.ACTIVE


async def test_two_that_take_an_engine_at_the_same_time(fleet: Fleet) -> None:
    """One has it; no epoch is spent, and nobody is fenced."""
    engine = await fleet.register(0)

    answers = await asyncio.gather(
        fleet.beat(1, engine), fleet.beat(2, engine), return_exceptions=True
    )
    await fleet.settle()

    assert fleet.home().count(True) == 1
    for answer in answers:
        if not isinstance(answer, HeartbeatAnswer):
            assert isinstance(answer, Conflict)
        else:
            assert answer.outcome is HeartbeatOutcome.RENEWED


async def test_an_epoch_is_larger_than_the_one_before_by_whatever_clock(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a store that lost its data counts epochs anew, at a replica whose clock is late.

    Else nothing would fence what the engine held before it was restarted.
    """
    await fleet.advance(60)
    before = await fleet.register(0)
    # A clock that begins when the fleet's did.
    monkeypatch.setattr(fleet.planes[1].directory, "_epochs", MemorySequence(clock=FakeClock()))

    after = await fleet.register(1)

    assert after.epoch > before.epoch
    assert (await fleet.beat(1, after)).outcome is HeartbeatOutcome.RENEWED
    assert (await fleet.beat(0, before)).outcome is HeartbeatOutcome.FENCED


async def test_a_replica_that_wakes_up_late(fleet: Fleet) -> None:
    """An engine that it calls lost, and hears to have moved in the same moment, is not its own."""
    engine = await fleet.register(0)
    await fleet.advance(12)
    anchors = fleet.stores[0].anchors
    opened = anchors.open

    async def answered_late(ttl: float, *, keep: bool = True) -> str:
        anchor = await opened(ttl, keep=keep)
        await fleet.beat(1, engine)
        for _ in range(5):
            await fleet.clock.advance(0)
        return anchor

    anchors.open = answered_late  # type: ignore[method-assign]
    await fleet.advance(4)

    assert fleet.home() == [False, True, False]
    assert fleet.states() == ALIVE


async def test_an_engine_that_moves_while_its_load_is_written(fleet: Fleet) -> None:
    """The heartbeat that brought the load is answered."""
    engine = await fleet.register(0)
    table = fleet.stores[0].table(ENGINES)
    commit = table.commit

    async def answered_late(*given: Any, **named: Any) -> int:
        revision = await commit(*given, **named)
        await fleet.beat(1, engine)
        for _ in range(5):
            await fleet.clock.advance(0)
        return revision

    table.commit = answered_late  # type: ignore[method-assign]
    answer = await fleet.beat(0, engine, LOAD)

    assert answer.outcome is HeartbeatOutcome.RENEWED
    assert fleet.home() == [False, True, False]


async def test_every_replica_tells_whose_an_engine_is(fleet: Fleet) -> None:
    """Its home is named by its own id and by all others, before it moves and after."""
    engine = await fleet.register(0)
    assert [plane.directory.home_of("d0") for plane in fleet.planes] == ["replica-0"] * 3

    await fleet.beat(1, engine)
    await fleet.settle()

    assert [plane.directory.home_of("d0") for plane in fleet.planes] == ["replica-1"] * 3
    assert {plane.directory.home_of("d1") for plane in fleet.planes} == {""}
