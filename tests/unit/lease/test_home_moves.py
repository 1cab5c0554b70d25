"""What becomes of an engine's leases when its stream comes to another replica."""

import contextlib
import datetime as dt
from dataclasses import replace

import pytest

from kvplane_services.engine.model import EngineState
from kvplane_services.errors import LeaseFenced, Unavailable
from kvplane_services.lease.model import EndReason, LeaseState
from kvplane_services.lease.reports import EngineReport
from kvplane_services.store.paging import PageRequest
from tests.support.lease_fleet import TTL, LeaseFleet, told, written
from tests.support.state_plane import by_retention
from tests.support.state_values import engine_of, full, handle_of, held, retention_of


async def test_every_replica_tells_of_every_lease(fleet: LeaseFleet) -> None:
    """A lease is got and listed wherever its engine reports."""
    lease = await fleet.held_lease(0, await fleet.register(0))

    for plane in fleet.planes:
        found = plane.manager.get(lease.name)
        assert (found.fencing_token, found.state) == (lease.fencing_token, LeaseState.ACTIVE)
        assert (found.handle, found.ttl) == (lease.handle, 30.0)
        page = await plane.manager.list(PageRequest())
        assert [lease.name] == [each.name for each in page.items]


async def test_every_replica_tells_why_a_lease_ended(fleet: LeaseFleet) -> None:
    """An end is known everywhere, for as long as it is remembered."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    await fleet.report(0, engine, EngineReport(ended=(("r1", EndReason.RECLAIMED),)))

    for plane in fleet.planes:
        assert plane.manager.get(lease.name).end_reason is EndReason.RECLAIMED
        page = await plane.manager.list(PageRequest(), include_ended=True)
        assert [lease.name] == [each.name for each in page.items]
        assert not (await plane.manager.list(PageRequest())).items


async def test_a_lease_stays_as_it_is_when_its_engine_moves(fleet: LeaseFleet) -> None:
    """The new home goes on under the same name and token, and writes nothing about it."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    async with fleet.recorded() as events:
        answer = await fleet.report(1, engine, full(told(lease)))

    (directive,) = answer.directives
    assert (lease.name, lease.fencing_token) == (directive.lease, directive.fencing_token)
    assert not answer.full_report_needed
    assert events == []
    assert fleet.homes() == [1]


async def test_an_engine_that_moves_need_not_know_its_lease(fleet: LeaseFleet) -> None:
    """The answer that told it was lost with the old home's stream."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    async with fleet.recorded() as events:
        answer = await fleet.report(1, engine, full(retention_of()))

    (directive,) = answer.directives
    assert (lease.name, lease.fencing_token) == (directive.lease, directive.fencing_token)
    assert events == []


@pytest.mark.parametrize("knows", [True, False])
async def test_a_move_before_the_new_home_has_seen_the_grant(
    fleet: LeaseFleet, *, knows: bool
) -> None:
    """What the old home wrote last counts, however late it is heard of."""
    engine = await fleet.register(0)
    (directive,) = (await fleet.planes[0].report(engine, full(retention_of()))).directives
    reported = retention_of(
        lease=directive.lease if knows else "",
        fencing_token=directive.fencing_token if knows else 0,
    )

    (again,) = (await fleet.planes[1].report(engine, full(reported))).directives
    await fleet.settle()

    assert (directive.lease, directive.fencing_token) == (again.lease, again.fencing_token)
    assert len((await fleet.leases.list()).items) == 1


async def test_a_moved_lease_counts_from_the_move(fleet: LeaseFleet) -> None:
    """The old home may have renewed it a moment before; it lasts a TTL and a grace from there."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    await fleet.advance(20)
    await fleet.planes[1].directory.heartbeat("d0", engine.epoch)

    await fleet.advance(34.5)
    assert fleet.states(lease) == [LeaseState.ACTIVE] * 3
    await fleet.advance(1)

    assert fleet.states(lease) == [LeaseState.ENDED] * 3
    assert fleet.planes[0].manager.get(lease.name).end_reason is EndReason.EXPIRED


async def test_an_idle_lease_is_not_kept_for_longer_by_moves(fleet: LeaseFleet) -> None:
    """The value policy goes on where it was at the home before, over a rolling restart."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    await fleet.beat(0, engine, 70)
    await fleet.report(1, engine, full(told(lease)))
    assert len(await fleet.beat(1, engine, 25)) == 2
    assert len((await fleet.report(2, engine, full(told(lease)))).directives) == 1

    # Granted 95 s ago: it is kept for 25 s more.
    assert len(await fleet.beat(2, engine, 60)) == 2
    assert fleet.states(lease) == [LeaseState.ENDED] * 3


@pytest.mark.parametrize("hours", [-1, 1])
async def test_clocks_that_differ_do_not_end_what_is_claimed(fleet: LeaseFleet, hours: int) -> None:
    """A grant in the future counts as one of now; an old one is kept while somebody claims it."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    found = await fleet.leases.get(lease.lease_id)
    assert found is not None
    assert found.value.create_time is not None
    other = found.value.create_time + dt.timedelta(hours=hours)
    await fleet.leases.put(
        lease.lease_id, replace(found.value, create_time=other), expected=found.revision
    )
    await fleet.settle()
    fleet.claim(1, lease, ttl=600.0)
    await fleet.report(1, engine, full(told(lease)))

    assert len(await fleet.beat(1, engine, 60, every=10)) >= 5
    fleet.claim(1, lease, drop=True)
    # The claim was its last use.
    assert await fleet.beat(1, engine, 100, every=10)
    assert fleet.states(lease) == [LeaseState.ACTIVE] * 3


async def test_the_old_home_ends_nothing(fleet: LeaseFleet) -> None:
    """Its own deadlines are none of the leases' any more."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    await fleet.report(1, engine, full(told(lease)))

    await fleet.beat(1, engine, 60)

    assert fleet.states(lease) == [LeaseState.ACTIVE] * 3


async def test_a_release_goes_on_at_the_new_home(fleet: LeaseFleet) -> None:
    """A lease on its way out is told to the engine again, and ends for the first reason."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    await fleet.planes[0].manager.release(lease.name, lease.fencing_token)
    await fleet.settle()

    answer = await fleet.report(1, engine, full(told(lease)))

    assert [each.release for each in answer.directives] == [EndReason.RELEASED]
    await fleet.report(1, engine, EngineReport(ended=(("r1", EndReason.EXPIRED),)))
    assert [plane.manager.get(lease.name).end_reason for plane in fleet.planes] == [
        EndReason.RELEASED
    ] * 3


async def test_what_the_engine_freed_meanwhile_is_over(fleet: LeaseFleet) -> None:
    """The new home compares what it took up with the engine's full report."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)

    await fleet.report(1, engine, full())

    assert fleet.states(lease) == [LeaseState.ENDED] * 3


async def test_a_lease_that_changed_with_the_move_is_written(fleet: LeaseFleet) -> None:
    """A refreshed handle, reported first to the new home, is what everybody reads."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)

    await fleet.report(1, engine, full(told(lease, handle=handle_of(2.0))))

    for plane in fleet.planes:
        assert plane.manager.get(lease.name).handle == handle_of(2.0)


async def test_leases_move_back(fleet: LeaseFleet) -> None:
    """Any number of times, under the same name."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    for at in (1, 2, 0, 2, 1, 0):
        (directive,) = (await fleet.report(at, engine, full(told(lease)))).directives
        assert lease.name == directive.lease
        assert fleet.homes() == [at]
        await fleet.beat(at, engine, 12)

    assert fleet.states(lease) == [LeaseState.ACTIVE] * 3


async def test_without_a_full_report_the_new_home_asks_for_one(fleet: LeaseFleet) -> None:
    """It renews what it took up, and cannot know whether that is all."""
    engine = await fleet.register(0)
    await fleet.held_lease(0, engine)

    answer = await fleet.report(1, engine, held())

    assert answer.full_report_needed
    assert [each.renew for each in answer.directives] == [30.0]


async def test_a_session_moves_on_after_its_engine_moved(fleet: LeaseFleet) -> None:
    """The next turn supersedes what another home granted."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    await fleet.report(1, engine, full(told(lease)))

    answer = by_retention(await fleet.report(1, engine, held(retention_of("r2"))))

    assert answer["r1"].release is EndReason.SUPERSEDED
    assert answer["r2"].fencing_token > lease.fencing_token
    assert fleet.states(lease) == [LeaseState.RELEASING] * 3


async def test_a_stale_home_writes_nothing(fleet: LeaseFleet) -> None:
    """A replica that was cut off while its engine moved is told by its guard, and forgets it."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    fleet.stores[0].cut()
    await fleet.report(1, engine, full(told(lease)))
    # Its engine's old stream is not quite dead.
    await fleet.planes[0].manager.report(
        engine, EngineReport(retentions=(retention_of("r9", "other"),))
    )
    fleet.planes[0].manager.claim("h", [])
    await fleet.advance(40, step=1)
    async with fleet.recorded() as events:
        fleet.stores[0].heal()
        await fleet.advance(10)

    assert written(events) == []
    assert fleet.homes() == [1]
    stored = await fleet.stored(lease)
    assert stored is not None


async def test_an_end_that_the_store_refused_is_no_end(fleet: LeaseFleet) -> None:
    """A replica that was cut off and took its engine for lost tells what the new home has."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    fleet.stores[0].cut()
    await fleet.report(1, engine, full(told(lease)))
    lost = replace(engine, state=EngineState.LOST)
    with contextlib.suppress(Unavailable):
        await fleet.planes[0].manager.observe(lost)
    assert fleet.planes[0].manager.get(lease.name).state is LeaseState.ENDED
    # Its writes come through, and are refused, before it hears where its engine is.
    fleet.stores[0].away = False
    await fleet.advance(5)
    fleet.stores[0].heal()
    await fleet.advance(10)

    assert fleet.homes() == [1]
    assert fleet.states(lease) == [LeaseState.ACTIVE] * len(fleet.planes)


async def test_a_stale_token_is_refused_anywhere(fleet: LeaseFleet) -> None:
    """At its home and elsewhere."""
    lease = await fleet.held_lease(0, await fleet.register(0))

    for plane in fleet.planes:
        with pytest.raises(LeaseFenced):
            await plane.manager.release(lease.name, lease.fencing_token - 1)


async def test_the_end_of_an_engine_ends_its_leases_once(fleet: LeaseFleet) -> None:
    """Its home says so; the others only listen."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    async with fleet.recorded() as events:
        await fleet.planes[1].directory.deregister("d0", engine.epoch)
        await fleet.planes[1].manager.observe_gone("d0")
        await fleet.advance(5)

    assert written(events) == [("r1", LeaseState.ENDED)]
    assert [plane.manager.get(lease.name).end_reason for plane in fleet.planes] == [
        EndReason.ENGINE_LOST
    ] * 3


async def test_a_new_registration_elsewhere_fences_what_was_held(fleet: LeaseFleet) -> None:
    """A restarted engine holds nothing of its earlier self's, wherever it registers."""
    lease = await fleet.held_lease(0, await fleet.register(0))

    await fleet.register(1)

    assert [plane.manager.get(lease.name).end_reason for plane in fleet.planes] == [
        EndReason.FENCED
    ] * 3


async def test_a_lease_of_an_earlier_registration_that_is_seen_late() -> None:
    """An engine that registers where its last lease is not known yet gets a new one on it.

    No router would use one that says that another registration holds it.
    """
    fleet = LeaseFleet(2)
    async with fleet.planes[0].running():
        lease = await fleet.held_lease(0, await fleet.register(0))
        # Nothing runs there that would have told this replica of the lease.
        engine = await fleet.planes[1].register(engine_of(), ttl=TTL)
        answer = await fleet.planes[1].report(engine, full(told(lease)))

        (directive,) = answer.directives
        renewed = fleet.planes[1].manager.get(directive.lease)
        assert renewed.engine_epoch == engine.epoch > lease.engine_epoch
        assert renewed.fencing_token == lease.fencing_token
        assert fleet.planes[1].manager.get(lease.name).end_reason is EndReason.FENCED
        async with fleet.planes[1].running():
            await fleet.settle()
            assert fleet.states(lease) == [LeaseState.ENDED] * 2
            assert fleet.states(renewed) == [LeaseState.ACTIVE] * 2
