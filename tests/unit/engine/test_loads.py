"""How often loads are written."""

from kvplane_services.engine.model import EngineLoad
from tests.support.engine_fleet import LOAD, Fleet
from tests.support.state_values import engine_of


async def test_heartbeats_are_not_written(fleet: Fleet) -> None:
    """Renewing an engine for a minute costs the store nothing."""
    engine = await fleet.register(0)
    await fleet.beat(0, engine, LOAD)
    await fleet.advance(2)
    writes = fleet.shared.writes

    for _ in range(60):
        await fleet.beat(0, engine, LOAD)
        await fleet.advance(1)

    assert fleet.shared.writes == writes


async def test_loads_are_written_together_and_not_too_often(fleet: Fleet) -> None:
    """Ten engines that report another load twenty times a second are one write a second."""
    engines = [await fleet.register(0, engine_of(f"d{number}")) for number in range(10)]
    await fleet.advance(2)
    writes = fleet.shared.writes

    for tick in range(100):
        for engine in engines:
            load = EngineLoad(running_requests=tick)
            answer = await fleet.beat(0, engine, load)
            assert answer.engine is not None
            assert answer.engine.load == load
        await fleet.advance(0.05, step=0.05)
    assert fleet.shared.writes - writes <= 8

    await fleet.advance(2)
    for engine in engines:
        await fleet.beat(0, engine)
        assert fleet.planes[1].directory.get(engine.engine_id).load.running_requests == 99


async def test_a_load_is_told_at_once_where_none_was_lately(fleet: Fleet) -> None:
    """A small fleet is not kept waiting."""
    engine = await fleet.register(0)

    await fleet.beat(0, engine, LOAD)
    await fleet.settle()

    assert fleet.planes[1].directory.get("d0").load == LOAD
