"""One read per retention of an engine with the stock connector, whoever asks where."""

import asyncio

import pytest

from kvplane_services.errors import FailedPrecondition, LeaseFenced, NotFound, Unavailable
from kvplane_services.lease.model import EndReason, LeaseState
from tests.support.lease_fleet import LeaseFleet
from tests.support.state_plane import StatePlane
from tests.support.state_values import full, lease_for, retention_of, stock_engine


async def test_the_first_who_asks_may_read(plane: StatePlane) -> None:
    """The lease is not given out again, and ends as CONSUMED when its time is up."""
    engine = await plane.register(stock_engine(), ttl=300.0)
    lease = (await plane.manager.grant(lease_for(engine), ttl=60.0)).lease

    await plane.manager.consume(lease.name, lease.fencing_token)

    taken = plane.manager.get(lease.name)
    assert (taken.state, taken.release_reason) == (LeaseState.RELEASING, EndReason.CONSUMED)
    with pytest.raises(FailedPrecondition, match="given out"):
        await plane.manager.consume(lease.name, lease.fencing_token)
    await plane.clock.advance(65)
    await plane.manager.sweep()
    assert plane.manager.get(lease.name).end_reason is EndReason.CONSUMED
    with pytest.raises(NotFound):
        await plane.manager.consume(lease.name, lease.fencing_token)


async def test_a_consumed_retention_is_not_leased_again(plane: StatePlane) -> None:
    """A grant that comes twice finds the lease whose read is taken."""
    engine = await plane.register(stock_engine(), ttl=300.0)
    lease = (await plane.manager.grant(lease_for(engine), ttl=60.0)).lease
    await plane.manager.consume(lease.name, lease.fencing_token)

    again = (await plane.manager.grant(lease_for(engine), ttl=60.0)).lease

    assert (again.name, again.state) == (lease.name, LeaseState.RELEASING)
    await plane.clock.advance(65)
    await plane.manager.sweep()
    with pytest.raises(FailedPrecondition, match="has ended"):
        await plane.manager.grant(lease_for(engine), ttl=60.0)


async def test_no_replica_leases_a_consumed_retention_again(fleet: LeaseFleet) -> None:
    """The ended lease stands in the store, where each of them sees it."""
    engine = await fleet.register(0, stock_engine())
    lease = (await fleet.planes[1].manager.grant(lease_for(engine), ttl=60.0)).lease
    await fleet.settle()
    await fleet.planes[0].manager.release(lease.name, lease.fencing_token)
    await fleet.clock.advance(65)
    for one in fleet.planes:
        await one.manager.sweep()
    await fleet.settle()

    for one in fleet.planes:
        with pytest.raises(FailedPrecondition, match="has ended"):
            await one.manager.grant(lease_for(engine), ttl=60.0)


async def test_an_engine_is_told_nothing(plane: StatePlane) -> None:
    """Neither a renewal nor a release: nothing can be told to it."""
    engine = await plane.register(stock_engine(), ttl=300.0)
    first = (await plane.manager.grant(lease_for(engine, "r1"), ttl=60.0)).lease
    await plane.manager.grant(lease_for(engine, "r2"), ttl=60.0)
    await plane.manager.release(first.name, first.fencing_token)

    assert (await plane.report(engine, full())).directives == ()


@pytest.mark.parametrize(("passed", "reads"), [(49.9, True), (50.1, False)])
async def test_a_read_needs_time(plane: StatePlane, passed: float, *, reads: bool) -> None:
    """In its last 10 s nothing is read: vLLM's readers would decline, or wait for ever."""
    engine = await plane.register(stock_engine(), ttl=300.0)
    lease = (await plane.manager.grant(lease_for(engine), ttl=60.0)).lease
    await plane.clock.advance(passed)

    if reads:
        await plane.manager.consume(lease.name, lease.fencing_token)
    else:
        with pytest.raises(FailedPrecondition, match="left"):
            await plane.manager.consume(lease.name, lease.fencing_token)


async def test_what_cannot_be_consumed(plane: StatePlane) -> None:
    """Another token, a lease that is on its way out, one of an engine whose reads keep."""
    engine = await plane.register(stock_engine(), ttl=300.0)
    older = (await plane.manager.grant(lease_for(engine, "r1"), ttl=60.0)).lease
    own = await plane.held_lease(await plane.register(), full(retention_of("r9", "other")))

    with pytest.raises(LeaseFenced):
        await plane.manager.consume(older.name, older.fencing_token + 1)
    with pytest.raises(FailedPrecondition, match="do not consume"):
        await plane.manager.consume(own.name, own.fencing_token)
    await plane.manager.grant(lease_for(engine, "r2"), ttl=60.0)
    with pytest.raises(FailedPrecondition, match="given up"):
        await plane.manager.consume(older.name, older.fencing_token)


async def test_of_all_replicas_one_gives_the_read_out(fleet: LeaseFleet) -> None:
    """Asked at the same time, they agree by the store; all of them see who it was."""
    engine = await fleet.register(0, stock_engine())
    lease = (await fleet.planes[1].manager.grant(lease_for(engine), ttl=60.0)).lease
    await fleet.settle()

    answers = await asyncio.gather(
        *(
            plane.manager.consume(lease.name, lease.fencing_token)
            for plane in (*fleet.planes, *fleet.planes)
        ),
        return_exceptions=True,
    )
    await fleet.settle()

    assert sum(answer is None for answer in answers) == 1
    assert all(isinstance(one, FailedPrecondition) for one in answers if one is not None)
    assert fleet.states(lease) == [LeaseState.RELEASING] * 3
    await fleet.advance(66)
    assert [plane.manager.get(lease.name).end_reason for plane in fleet.planes] == [
        EndReason.CONSUMED
    ] * 3


@pytest.mark.parametrize("at", [0, 1])
async def test_a_read_needs_the_store(fleet: LeaseFleet, at: int) -> None:
    """While it is away nobody knows who was first, so nobody reads."""
    engine = await fleet.register(0, stock_engine())
    lease = (await fleet.planes[0].manager.grant(lease_for(engine), ttl=60.0)).lease
    await fleet.settle()
    fleet.stores[at].cut()

    with pytest.raises(Unavailable):
        await fleet.planes[at].manager.consume(lease.name, lease.fencing_token)
