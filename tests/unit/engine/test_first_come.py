"""Engines that several replicas name."""

import asyncio

import pytest

from kvplane_services.errors import (
    AlreadyExists,
    Conflict,
)
from tests.support.engine_fleet import Fleet
from tests.support.state_values import stock_engine


async def test_the_first_that_registers_a_named_engine_keeps_it(fleet: Fleet) -> None:
    """The others leave it alone, and no epoch is spent."""
    one, two = (plane.directory for plane in fleet.planes[:2])
    engine = (await one.register(stock_engine(), first_come=True)).engine
    await fleet.settle()

    assert two.attended("s0")
    assert not one.attended("s0")
    with pytest.raises(AlreadyExists):
        await two.register(stock_engine(), first_come=True)

    assert two.get("s0").epoch == engine.epoch


async def test_two_that_register_a_named_engine_at_the_same_time(fleet: Fleet) -> None:
    """One does; the other is told, or finds it registered."""
    answers = await asyncio.gather(
        *(plane.directory.register(stock_engine(), first_come=True) for plane in fleet.planes),
        return_exceptions=True,
    )
    await fleet.settle()

    assert sum(not isinstance(answer, BaseException) for answer in answers) == 1
    assert all(
        isinstance(answer, Conflict | AlreadyExists)
        for answer in answers
        if isinstance(answer, BaseException)
    )
    assert fleet.home("s0").count(True) == 1


async def test_a_named_engine_whose_registration_lapsed_is_free(fleet: Fleet) -> None:
    """Another replica may take it over then."""
    first = await fleet.register(0, stock_engine())
    await fleet.advance(16)
    assert not fleet.planes[1].directory.attended("s0")

    second = await fleet.planes[1].directory.register(stock_engine(), first_come=True)

    assert second.engine.epoch > first.epoch
