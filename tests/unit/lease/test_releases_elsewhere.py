"""Releases at another replica than the lease's home, and grants for engines that do not report."""

import asyncio
import uuid

import pytest

from kvplane_services.errors import EpochStale, Unavailable
from kvplane_services.lease.model import EndReason, LeaseState, RenewalOutcome
from kvplane_services.lease.reports import EngineReport
from kvplane_services.store.commits import store_away
from tests.support.lease_fleet import LeaseFleet, told, written
from tests.support.state_values import full, held, lease_for, stock_engine


async def test_a_release_elsewhere_reaches_the_engine(fleet: LeaseFleet) -> None:
    """The home tells the engine, once; nobody is given the lease from the release on."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    async with fleet.recorded() as events:
        await fleet.planes[1].manager.release(lease.name, lease.fencing_token)
        assert fleet.planes[1].manager.get(lease.name).state is LeaseState.RELEASING
        await fleet.settle()

        (directive,) = (await fleet.report(0, engine, held())).directives
        assert (await fleet.report(0, engine, held())).directives == ()
        await fleet.report(0, engine, EngineReport(ended=(("r1", EndReason.EXPIRED),)))

    assert directive.release is EndReason.RELEASED
    assert written(events) == [("r1", LeaseState.RELEASING), ("r1", LeaseState.ENDED)]
    assert [plane.manager.get(lease.name).end_reason for plane in fleet.planes] == [
        EndReason.RELEASED
    ] * 3


async def test_releasing_twice_anywhere(fleet: LeaseFleet) -> None:
    """The second does nothing, wherever it is asked for, nor does one of what is gone."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    async with fleet.recorded() as events:
        for plane in (*fleet.planes, *fleet.planes):
            await plane.manager.release(lease.name, lease.fencing_token)
        await fleet.settle()
        await fleet.report(0, engine, EngineReport(ended=(("r1", EndReason.RELEASED),)))
        for plane in fleet.planes:
            await plane.manager.release(lease.name, lease.fencing_token)
            await plane.manager.release("leases/unknown", 1)

    assert written(events) == [("r1", LeaseState.RELEASING), ("r1", LeaseState.ENDED)]


async def test_releases_at_once_everywhere(fleet: LeaseFleet) -> None:
    """All succeed, and the engine is told once."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)

    await asyncio.gather(
        *(plane.manager.release(lease.name, lease.fencing_token) for plane in fleet.planes)
    )
    await fleet.settle()

    assert len((await fleet.report(0, engine, held())).directives) == 1
    assert (await fleet.report(0, engine, held())).directives == ()


async def test_a_release_crosses_a_change_at_the_home(fleet: LeaseFleet) -> None:
    """Neither is lost: the home merges what it was about to write with what was written."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    fleet.stores[0].cut(notices=True)
    await fleet.planes[0].report(engine, held(told(lease, tokens=128)))
    await fleet.planes[1].manager.release(lease.name, lease.fencing_token)

    fleet.stores[0].heal()
    await fleet.advance(10)

    assert fleet.states(lease) == [LeaseState.RELEASING] * 3
    stored = await fleet.stored(lease)
    assert stored is not None
    assert (stored.tokens, stored.release_reason) == (128, EndReason.RELEASED)
    (directive,) = (await fleet.report(0, engine, held())).directives
    assert directive.release is EndReason.RELEASED


async def test_a_release_that_cannot_be_written_is_not_promised(fleet: LeaseFleet) -> None:
    """At the home it is done all the same, and known everywhere once the store is back."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    for store in fleet.stores:
        store.cut()
    for plane in fleet.planes[:2]:
        with pytest.raises(Unavailable) as refused:
            await plane.manager.release(lease.name, lease.fencing_token)
        assert str(refused.value) == str(store_away())

    (directive,) = (await fleet.planes[0].report(engine, held())).directives
    assert directive.release is EndReason.RELEASED
    for store in fleet.stores:
        store.heal()
    await fleet.advance(10)
    assert fleet.states(lease) == [LeaseState.RELEASING] * 3


async def test_a_release_at_a_home_that_was_replaced_is_not_promised(fleet: LeaseFleet) -> None:
    """It may never be heard of, so the caller is told to repeat it, which then counts."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    fleet.stores[0].cut()
    await fleet.report(1, engine, full(told(lease)))

    with pytest.raises(Unavailable):
        await fleet.planes[0].manager.release(lease.name, lease.fencing_token)
    fleet.stores[0].heal()
    await fleet.advance(5)
    assert fleet.states(lease) == [LeaseState.ACTIVE] * 3

    await fleet.planes[0].manager.release(lease.name, lease.fencing_token)
    await fleet.settle()
    assert fleet.states(lease) == [LeaseState.RELEASING] * 3


# -- Engines that hold blocks for a fixed time -----------------------------------------------


async def test_any_replica_grants_for_a_stock_engine(fleet: LeaseFleet) -> None:
    """Its home looks after the lease, which ends in its time."""
    engine = await fleet.register(0, stock_engine())
    grant = await fleet.planes[1].manager.grant(lease_for(engine), ttl=60.0)
    assert fleet.claim(1, grant.lease, ttl=600.0).ttl == 60.0
    await fleet.settle()
    assert fleet.states(grant.lease) == [LeaseState.ACTIVE] * 3

    await fleet.advance(64)
    assert fleet.states(grant.lease) == [LeaseState.ACTIVE] * 3
    assert fleet.claim(1, grant.lease).outcome is RenewalOutcome.NOT_FOUND
    await fleet.advance(1.5)

    assert [plane.manager.get(grant.lease.name).end_reason for plane in fleet.planes] == [
        EndReason.EXPIRED
    ] * 3


async def test_gateways_at_two_replicas_see_the_same_handle(fleet: LeaseFleet) -> None:
    """One retention gets one lease, whoever asks first, also at the same time."""
    engine = await fleet.register(0, stock_engine())

    grants = await asyncio.gather(
        *(plane.manager.grant(lease_for(engine), ttl=60.0) for plane in fleet.planes)
    )
    await fleet.settle()

    assert len({grant.lease.name for grant in grants}) == 1
    assert len({grant.lease.fencing_token for grant in grants}) == 1


async def test_a_fixed_lease_does_not_get_longer_by_moving(fleet: LeaseFleet) -> None:
    """The new home counts what is left of it."""
    engine = await fleet.register(0, stock_engine())
    grant = await fleet.planes[0].manager.grant(lease_for(engine), ttl=60.0)
    await fleet.advance(40)
    await fleet.planes[1].directory.heartbeat("s0", engine.epoch)
    await fleet.settle()

    assert fleet.claim(1, grant.lease, ttl=600.0).ttl == pytest.approx(20.0)
    await fleet.advance(25.5)

    assert fleet.states(grant.lease) == [LeaseState.ENDED] * 3


async def test_a_retried_grant_elsewhere_returns_the_first_answer(fleet: LeaseFleet) -> None:
    """By request id, and by retention."""
    engine = await fleet.register(0, stock_engine())
    request_id = str(uuid.uuid4())
    manager = fleet.planes[1].manager
    first = await manager.grant(lease_for(engine), ttl=60.0, request_id=request_id)
    await fleet.settle()

    again = await manager.grant(lease_for(engine), ttl=60.0, request_id=request_id)
    other = await fleet.planes[2].manager.grant(lease_for(engine), ttl=60.0)

    assert first.lease.fencing_token == again.lease.fencing_token == other.lease.fencing_token


async def test_a_grant_elsewhere_supersedes(fleet: LeaseFleet) -> None:
    """The session's older lease is no longer given out anywhere."""
    engine = await fleet.register(0, stock_engine())
    older = await fleet.planes[1].manager.grant(lease_for(engine, "r1"), ttl=60.0)
    await fleet.planes[2].manager.grant(lease_for(engine, "r2"), ttl=60.0)
    await fleet.settle()

    assert fleet.states(older.lease) == [LeaseState.RELEASING] * 3


async def test_a_grant_needs_the_store(fleet: LeaseFleet) -> None:
    """Wherever it is asked for."""
    engine = await fleet.register(0, stock_engine())
    for store in fleet.stores:
        store.cut()

    for plane in fleet.planes:
        with pytest.raises(Unavailable):
            await plane.manager.grant(lease_for(engine), ttl=60.0)


async def test_a_grant_for_an_engine_that_restarted_is_refused(fleet: LeaseFleet) -> None:
    """Wherever it is asked for; what slips through by a hair is fenced."""
    old = await fleet.register(0, stock_engine())
    new = await fleet.register(2, stock_engine())
    assert new.epoch > old.epoch

    for plane in fleet.planes:
        with pytest.raises(EpochStale):
            await plane.manager.grant(lease_for(old), ttl=60.0)
