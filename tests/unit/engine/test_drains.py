"""Orders to drain, given at any replica."""

import pytest

from kvplane_services.adapters.records import ENGINES, HOMES
from kvplane_services.engine.model import EngineLoad, EngineState
from kvplane_services.errors import (
    NotFound,
    Unavailable,
)
from tests.support.engine_fleet import LOAD, Fleet
from tests.support.state_values import engine_of


async def test_draining_anywhere(fleet: Fleet) -> None:
    """The engine hears of it from its home, wherever the operator asked."""
    engine = await fleet.register(0)
    await fleet.beat(0, engine, LOAD)

    drained = await fleet.planes[1].directory.drain("d0")
    assert fleet.hangs_on_its_home("d0")
    again = await fleet.planes[1].directory.drain("d0")
    await fleet.settle()

    assert drained.state is again.state is EngineState.DRAINING
    assert (await fleet.beat(0, engine)).drain_requested
    assert fleet.states() == [EngineState.DRAINING] * 3
    assert (await fleet.planes[2].directory.resume("d0")).state is EngineState.ACTIVE
    await fleet.settle()
    assert not (await fleet.beat(0, engine)).drain_requested


async def test_an_order_hangs_where_its_engine_hangs(fleet: Fleet) -> None:
    """Also if the operator's replica does not know yet that this is another place than before."""
    await fleet.register(0)
    fleet.stores[1].table(HOMES).freeze()
    fleet.shared.remove("homes", "d0")
    await fleet.settle()

    await fleet.planes[1].directory.drain("d0")

    assert fleet.hangs_on_its_home("d0")


async def test_an_order_is_not_written_over_a_newer_registration(fleet: Fleet) -> None:
    """Though the operator's replica has not seen it."""
    await fleet.register(0)
    fleet.stores[1].table(ENGINES).freeze()
    new = await fleet.register(0)

    drained = await fleet.planes[1].directory.drain("d0")

    assert drained.epoch == new.epoch
    stored = await fleet.stored()
    assert stored is not None
    assert (stored.epoch, stored.drain_requested) == (new.epoch, True)


async def test_a_load_on_its_way_does_not_undo_a_drain(fleet: Fleet) -> None:
    """The home writes what it has to say on top of the order, not over it."""
    engine = await fleet.register(0)
    await fleet.beat(0, engine, EngineLoad(running_requests=1))
    await fleet.beat(0, engine, LOAD)

    await fleet.planes[1].directory.drain("d0")
    await fleet.live(0, engine, 3)

    stored = await fleet.stored()
    assert stored is not None
    assert (stored.state, stored.load) == (EngineState.DRAINING, LOAD)
    assert (await fleet.beat(0, engine)).drain_requested


async def test_a_drain_at_the_home_while_the_store_is_away(fleet: Fleet) -> None:
    """It counts at once, and is written once the store is back."""
    engine = await fleet.register(0)
    fleet.stores[0].cut()

    with pytest.raises(Unavailable):
        await fleet.planes[0].directory.drain("d0")

    assert (await fleet.beat(0, engine)).drain_requested
    fleet.stores[0].heal()
    await fleet.live(0, engine, 3)
    assert fleet.states() == [EngineState.DRAINING] * 3


async def test_a_draining_engine_that_moves_drains_on(fleet: Fleet) -> None:
    """Its new home knows of the order."""
    engine = await fleet.register(0)
    await fleet.planes[2].directory.drain("d0")
    await fleet.settle()

    assert (await fleet.beat(1, engine)).drain_requested


async def test_a_lost_engine_that_comes_back_elsewhere_drains_on(fleet: Fleet) -> None:
    """Unless it was restarted."""
    described = engine_of()
    await fleet.register(0, described)
    await fleet.planes[1].directory.drain("d0")
    await fleet.settle()
    await fleet.advance(16)
    assert fleet.states() == [EngineState.LOST] * 3

    assert (await fleet.register(2, described)).state is EngineState.DRAINING
    assert (await fleet.register(1)).state is EngineState.ACTIVE


@pytest.mark.parametrize("verb", ["drain", "resume"])
async def test_orders_for_lost_engines_are_not_found(fleet: Fleet, verb: str) -> None:
    """As at its home."""
    await fleet.register(0)
    await fleet.advance(16)

    with pytest.raises(NotFound):
        await getattr(fleet.planes[1].directory, verb)("d0")
