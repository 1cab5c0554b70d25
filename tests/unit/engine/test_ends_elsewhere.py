"""Registrations that end at another replica than they lived at."""

import pytest

from kvplane_services.engine.answers import HeartbeatOutcome
from kvplane_services.errors import (
    EpochStale,
)
from tests.support.engine_fleet import ALIVE, Fleet


async def test_deregistering_anywhere(fleet: Fleet) -> None:
    """It ends at once and for all, and leaves nothing behind."""
    engine = await fleet.register(0)

    await fleet.planes[1].directory.deregister("d0", engine.epoch)
    await fleet.settle()
    assert fleet.states() == [None] * 3
    await fleet.advance(5)

    assert not any(fleet.home())
    assert not fleet.left()
    assert (await fleet.beat(1, engine)).outcome is HeartbeatOutcome.NOT_FOUND


async def test_an_earlier_self_cannot_deregister_anywhere(fleet: Fleet) -> None:
    """Also where its successor is not at home."""
    old = await fleet.register(0)
    await fleet.register(1)

    for plane in fleet.planes:
        with pytest.raises(EpochStale):
            await plane.directory.deregister("d0", old.epoch)

    assert fleet.states() == ALIVE


async def test_a_lost_engine_can_be_deregistered_anywhere(fleet: Fleet) -> None:
    """An operator need not know where it was."""
    engine = await fleet.register(0)
    await fleet.advance(16)

    await fleet.planes[1].directory.deregister("d0", engine.epoch)
    await fleet.settle()

    assert fleet.states() == [None] * 3


async def test_an_engine_that_registers_again_at_once_is_not_left(fleet: Fleet) -> None:
    """The end of its earlier self does not take the new one along."""
    engine = await fleet.register(0)
    await fleet.planes[0].directory.deregister("d0", engine.epoch)

    again = await fleet.register(0)
    await fleet.live(0, again, 5)

    assert fleet.states() == ALIVE
