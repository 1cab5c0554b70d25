import uuid
from dataclasses import replace

import pytest

from kvplane_services.engine.answers import HeartbeatOutcome
from kvplane_services.engine.model import EngineLoad, EngineState, KvLayout, Role
from kvplane_services.engine.registration import DirectoryConfig
from kvplane_services.errors import (
    EngineIncompatible,
    EpochStale,
    InvalidRequest,
    NotFound,
    Saturated,
)
from kvplane_services.store.model import Removed, Synced, Upserted
from kvplane_services.store.paging import PageRequest
from tests.support.state_plane import StatePlane
from tests.support.state_values import engine_of, stock_engine


@pytest.fixture
def plane() -> StatePlane:
    return StatePlane()


async def test_a_registered_engine_is_found(plane: StatePlane) -> None:
    """It is active, has an epoch, and tells when it lapses."""
    registration = await plane.directory.register(engine_of())

    engine = plane.directory.get("d0")
    assert registration.engine == engine
    assert engine.state is EngineState.ACTIVE
    assert engine.epoch > 0
    assert engine.expire_time is not None
    assert (engine.expire_time - plane.clock.wall()).total_seconds() == registration.ttl


async def test_every_registration_has_a_larger_epoch(plane: StatePlane) -> None:
    """A restarted engine takes its place over, and its earlier self is refused."""
    first = await plane.register()
    second = await plane.register()

    beat = await plane.directory.heartbeat("d0", first.epoch)

    assert second.epoch > first.epoch
    assert beat.outcome is HeartbeatOutcome.FENCED


async def test_an_epoch_of_the_future_is_refused_as_well(plane: StatePlane) -> None:
    """The fence is equality: a larger epoch that was never given out is no better."""
    engine = await plane.register()

    beat = await plane.directory.heartbeat("d0", engine.epoch + 1)

    assert beat.outcome is HeartbeatOutcome.FENCED


async def test_a_retried_registration_returns_the_first_answer(plane: StatePlane) -> None:
    """The same request id does not make a second registration."""
    engine, request_id = engine_of(), str(uuid.uuid4())
    first = await plane.directory.register(engine, request_id=request_id)
    await plane.clock.advance(1)

    again = await plane.directory.register(engine, request_id=request_id)

    assert first == again


async def test_a_request_id_used_for_another_engine(plane: StatePlane) -> None:
    """A request id names one request."""
    request_id = str(uuid.uuid4())
    await plane.directory.register(engine_of("d0"), request_id=request_id)

    with pytest.raises(InvalidRequest):
        await plane.directory.register(engine_of("d1"), request_id=request_id)


async def test_an_engine_that_does_not_fit_is_not_registered(plane: StatePlane) -> None:
    """A refusal leaves the directory as it was."""
    await plane.register(engine_of("p0", role=Role.PREFILL))

    with pytest.raises(EngineIncompatible):
        await plane.register(engine_of(layout=KvLayout(block_size=128, total_blocks=1)))

    assert plane.directory.find("d0") is None


async def test_a_stopped_partner_stands_in_nobodys_way(plane: StatePlane) -> None:
    """Engines may be replaced by others once the old ones are deregistered."""
    prefill = await plane.register(engine_of("p0", role=Role.PREFILL))
    await plane.directory.deregister("p0", prefill.epoch)

    await plane.register(engine_of(layout=KvLayout(block_size=128, total_blocks=1)))

    assert plane.directory.find("d0") is not None


async def test_heartbeats_keep_an_engine_alive(plane: StatePlane) -> None:
    """An engine lives as long as its heartbeats come within its TTL."""
    engine = await plane.register()
    for _ in range(5):
        await plane.clock.advance(14.9)
        await plane.directory.sweep()
        assert (await plane.directory.heartbeat("d0", engine.epoch)).ttl == 15.0

    assert plane.directory.get("d0").state is EngineState.ACTIVE


async def test_a_silent_engine_is_lost_at_its_ttl(plane: StatePlane) -> None:
    """It is lost when its TTL has passed, not before, and has to register again."""
    engine = await plane.register()
    await plane.clock.advance(14.9)
    await plane.directory.sweep()
    assert plane.directory.get("d0").state is EngineState.ACTIVE

    await plane.clock.advance(0.1)
    await plane.directory.sweep()

    assert plane.directory.get("d0").state is EngineState.LOST
    beat = await plane.directory.heartbeat("d0", engine.epoch)
    assert beat.outcome is HeartbeatOutcome.NOT_FOUND
    again = await plane.register()
    assert again.state is EngineState.ACTIVE


async def test_a_negative_ttl_is_refused(plane: StatePlane) -> None:
    """A registration cannot ask to be over before it begins."""
    with pytest.raises(InvalidRequest) as refused:
        await plane.register(ttl=-1.0)

    assert refused.value.field == "ttl"


async def test_each_engine_is_lost_at_its_own_time(plane: StatePlane) -> None:
    """An engine with a long TTL that registered first does not hide a silent one behind it."""
    await plane.register(engine_of("long"), ttl=100.0)
    await plane.register(engine_of("short"), ttl=5.0)

    await plane.clock.advance(5)
    await plane.directory.sweep()

    states = {name: plane.directory.get(name).state for name in ("long", "short")}
    assert states == {"long": EngineState.ACTIVE, "short": EngineState.LOST}


async def test_lost_engines_are_forgotten_after_a_while(plane: StatePlane) -> None:
    """A lost engine is listed as lost for a time, then not at all."""
    await plane.register()
    await plane.clock.advance(15)
    await plane.directory.sweep()
    await plane.clock.advance(599)
    await plane.directory.sweep()
    assert plane.directory.find("d0") is not None

    await plane.clock.advance(1)
    await plane.directory.sweep()

    assert plane.directory.find("d0") is None


async def test_unknown_engines_have_to_register(plane: StatePlane) -> None:
    """A plane that lost its memory tells engines so."""
    beat = await plane.directory.heartbeat("d0", 1)

    assert beat.outcome is HeartbeatOutcome.NOT_FOUND
    assert beat.heartbeat_interval > 0


async def test_the_planes_prober_can_keep_a_stock_engine_alive(plane: StatePlane) -> None:
    """Whoever registered an engine beats for it, with or without load."""
    engine = await plane.register(stock_engine())

    await plane.clock.advance(10)
    beat = await plane.directory.heartbeat("s0", engine.epoch, EngineLoad(running_requests=2))
    await plane.clock.advance(10)
    await plane.directory.sweep()

    assert beat.outcome is HeartbeatOutcome.RENEWED
    assert plane.directory.get("s0").load.running_requests == 2
    assert plane.directory.get("s0").state is EngineState.ACTIVE


async def test_draining_and_resuming(plane: StatePlane) -> None:
    """An operator's wish shows in the engine's state and in the answers to its heartbeats."""
    engine = await plane.register()

    assert (await plane.directory.drain("d0")).state is EngineState.DRAINING
    assert (await plane.directory.drain("d0")).state is EngineState.DRAINING
    assert (await plane.directory.heartbeat("d0", engine.epoch)).drain_requested
    assert (await plane.directory.resume("d0")).state is EngineState.ACTIVE
    assert not (await plane.directory.heartbeat("d0", engine.epoch)).drain_requested


async def test_a_process_that_registers_again_drains_on(plane: StatePlane) -> None:
    """A hiccup of the network does not undo an operator's drain, even if the engine was lost."""
    described = engine_of()
    await plane.register(described)
    await plane.directory.drain("d0")
    await plane.clock.advance(15)
    await plane.directory.sweep()

    assert (await plane.register(described)).state is EngineState.DRAINING


async def test_a_restarted_process_does_not_drain(plane: StatePlane) -> None:
    """An engine that was restarted takes turns again."""
    await plane.register()
    await plane.directory.drain("d0")

    assert (await plane.register(engine_of())).state is EngineState.ACTIVE


@pytest.mark.parametrize("verb", ["drain", "resume", "get"])
async def test_unknown_engines_are_not_found(plane: StatePlane, verb: str) -> None:
    """Operators are told that there is no such engine."""

    async def ask() -> None:
        answer = getattr(plane.directory, verb)("d0")
        await answer

    with pytest.raises(NotFound):
        await ask()


async def test_deregistering(plane: StatePlane) -> None:
    """A registration ends at once, and ending it again does nothing."""
    engine = await plane.register()

    await plane.directory.deregister("d0", engine.epoch)
    await plane.directory.deregister("d0", engine.epoch)

    assert plane.directory.find("d0") is None


async def test_deregistering_is_told_as_an_end(plane: StatePlane) -> None:
    """Who follows the engines sees it lost, and then removed: the store did not lose it."""
    engine = await plane.register()
    events = plane.directory.watch()
    assert isinstance(await anext(events), Upserted)
    assert isinstance(await anext(events), Synced)

    await plane.directory.deregister("d0", engine.epoch)

    lost, removed = await anext(events), await anext(events)
    assert isinstance(lost, Upserted)
    assert (lost.value.state, lost.value.epoch) == (EngineState.LOST, engine.epoch)
    assert isinstance(removed, Removed)


async def test_an_earlier_self_cannot_deregister(plane: StatePlane) -> None:
    """A process that is slow to stop does not take its successor down."""
    first = await plane.register()
    second = await plane.register()

    with pytest.raises(EpochStale) as refused:
        await plane.directory.deregister("d0", first.epoch)

    assert refused.value.metadata["epoch"] == str(second.epoch)
    assert plane.directory.find("d0") is not None


async def test_the_number_of_engines_is_bounded() -> None:
    """A runaway caller cannot fill the directory, and known engines can still register again."""
    plane = StatePlane(directory=DirectoryConfig(max_engines=1))
    await plane.register(engine_of("d0"))

    with pytest.raises(Saturated):
        await plane.register(engine_of("d1"))

    await plane.register(engine_of("d0"))


async def test_listing_by_role_and_model(plane: StatePlane) -> None:
    """Filters narrow a listing, which is by name."""
    await plane.register(engine_of("d1", models=("m", "n")))
    await plane.register(engine_of("d0"))
    await plane.register(engine_of("p0", role=Role.PREFILL))

    async def names(**filters: object) -> list[str]:
        page = await plane.directory.list(PageRequest(), **filters)  # type: ignore[arg-type]
        return [engine.engine_id for engine in page.items]

    assert await names() == ["d0", "d1", "p0"]
    assert await names(role=Role.DECODE) == ["d0", "d1"]
    assert await names(model="n") == ["d1"]
    assert await names(role=Role.PREFILL, model="n") == []


async def test_the_feed_tells_of_loads_states_and_ends(plane: StatePlane) -> None:
    """Followers see registrations, loads as they change, losses and ends; not mere heartbeats."""
    feed = plane.directory.feed()()
    assert isinstance(await anext(feed), Synced)

    engine = await plane.register()
    load = EngineLoad(running_requests=1)
    await plane.directory.heartbeat("d0", engine.epoch, load)
    await plane.directory.heartbeat("d0", engine.epoch, load)
    await plane.directory.heartbeat("d0", engine.epoch)
    await plane.directory.drain("d0")
    await plane.directory.deregister("d0", engine.epoch)

    seen = [await anext(feed) for _ in range(5)]
    states = [
        (event.value.state, event.value.load) if isinstance(event, Upserted) else event.__class__
        for event in seen
    ]
    assert [
        (EngineState.ACTIVE, EngineLoad()),
        (EngineState.ACTIVE, load),
        (EngineState.DRAINING, load),
        (EngineState.LOST, load),
        Removed,
    ] == states


async def test_its_loop_finds_lost_engines(plane: StatePlane) -> None:
    """The sweep runs by itself."""
    await plane.register()
    async with plane.running():
        await plane.clock.advance(16)

        assert plane.directory.get("d0").state is EngineState.LOST


async def test_output_only_fields_are_ignored(plane: StatePlane) -> None:
    """An engine cannot choose its own epoch, state or load."""
    claimed = replace(
        engine_of(), epoch=1 << 60, state=EngineState.LOST, load=EngineLoad(used_blocks=9)
    )

    engine = await plane.register(claimed)

    assert engine.epoch != claimed.epoch
    assert engine.state is EngineState.ACTIVE
    assert engine.load == EngineLoad()
