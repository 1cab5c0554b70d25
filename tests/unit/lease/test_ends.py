"""How leases end: by an engine's word, its silence about them, or its own end."""

from dataclasses import replace

import pytest

from kvplane_services.lease.model import EndReason, Handle, LeaseState
from kvplane_services.lease.reports import EngineReport
from tests.support.state_plane import StatePlane
from tests.support.state_values import full, retention_of


@pytest.mark.parametrize("reason", list(EndReason))
async def test_an_end_is_recorded_with_its_reason(plane: StatePlane, reason: EndReason) -> None:
    """What the engine says of an end is what readers are told."""
    engine = await plane.register()
    lease = await plane.held_lease(engine, full(retention_of()))

    await plane.report(engine, EngineReport(ended=(("r1", reason),)))

    ended = plane.manager.get(lease.name)
    assert (LeaseState.ENDED, reason) == (ended.state, ended.end_reason)


async def test_an_end_is_told_exactly_once(plane: StatePlane) -> None:
    """A repeated report of the end, or a later one with another reason, changes nothing."""
    engine = await plane.register()
    lease = await plane.held_lease(engine, full(retention_of()))
    async with plane.recorded_leases() as events:
        for reason in (EndReason.RECLAIMED, EndReason.RECLAIMED, EndReason.EXPIRED):
            await plane.report(engine, EngineReport(ended=(("r1", reason),)))
        await plane.report(engine, full())
        await plane.clock.advance(100)
        await plane.manager.sweep()

    assert [(lease.lease_id, EndReason.RECLAIMED)] == [
        (event.key, event.value.end_reason) for event in events
    ]


async def test_a_retention_that_begins_and_ends_within_one_frame(plane: StatePlane) -> None:
    """Its end is told: nobody could have used it in between."""
    engine = await plane.register()
    async with plane.recorded_leases() as events:
        report = EngineReport(
            retentions=(retention_of(),), ended=(("r1", EndReason.RECLAIMED),), full=True
        )
        assert (await plane.report(engine, report)).directives == ()

    assert [event.value.state for event in events] == [LeaseState.ENDED]


async def test_ends_of_unknown_retentions_are_ignored(plane: StatePlane) -> None:
    """An engine may report the end of what the plane never knew."""
    engine = await plane.register()

    answer = await plane.report(
        engine, EngineReport(ended=(("r9", EndReason.EXPIRED),), reads=(("r9", 1),), full=True)
    )

    assert answer.directives == ()


async def test_what_a_full_report_leaves_out_is_over(plane: StatePlane) -> None:
    """The engine is the source of truth: before its time only pressure can have ended a lease."""
    engine = await plane.register()
    await plane.report(engine, full(retention_of("r1", "a"), retention_of("r2", "b")))
    leases = {name: plane.manager._ledger.retention("d0", name) for name in ("r1", "r2")}

    await plane.report(engine, full(retention_of("r2", "b")))

    gone, there = leases["r1"], leases["r2"]
    assert gone is not None
    assert there is not None
    assert gone.lease.end_reason is EndReason.RECLAIMED
    assert there.lease.state is LeaseState.ACTIVE


async def test_what_a_full_report_leaves_out_after_its_time_expired(plane: StatePlane) -> None:
    """An engine that was cut off for longer than the TTL let its leases expire."""
    engine = await plane.register(ttl=300.0)
    lease = await plane.held_lease(engine, full(retention_of()))
    await plane.clock.advance(31)

    await plane.report(engine, full())

    assert plane.manager.get(lease.name).end_reason is EndReason.EXPIRED


async def test_what_an_engine_would_hold_longer_than_the_ttl_did_not_expire_before(
    plane: StatePlane,
) -> None:
    """Nothing is called expired before its engine's own time, however long that is."""
    engine = await plane.register(ttl=300.0)
    lease = await plane.held_lease(engine, full(retention_of(remaining=60.0)))
    await plane.clock.advance(31)

    await plane.report(engine, full())

    assert plane.manager.get(lease.name).end_reason is EndReason.RECLAIMED


async def test_a_full_report_tells_the_reasons_it_knows(plane: StatePlane) -> None:
    """The engine's own word stands before the plane's inference."""
    engine = await plane.register()
    lease = await plane.held_lease(engine, full(retention_of()))

    await plane.report(engine, EngineReport(ended=(("r1", EndReason.CONSUMED),), full=True))

    assert plane.manager.get(lease.name).end_reason is EndReason.CONSUMED


async def test_a_new_epoch_fences_what_was_held_before(plane: StatePlane) -> None:
    """A restarted engine holds nothing of its earlier self's."""
    lease = await plane.held_lease(await plane.register(), full(retention_of()))

    await plane.register()

    ended = plane.manager.get(lease.name)
    assert (ended.state, ended.end_reason) == (LeaseState.ENDED, EndReason.FENCED)


async def test_the_loss_of_an_engine_ends_its_leases(plane: StatePlane) -> None:
    """Followers are told at once that its handles are worthless."""
    async with plane.running():
        lease = await plane.held_lease(await plane.register(), full(retention_of()))

        await plane.clock.advance(16)

        assert plane.manager.get(lease.name).end_reason is EndReason.ENGINE_LOST


async def test_a_deregistered_engine_leaves_no_leases(plane: StatePlane) -> None:
    """An engine that stops takes its leases along."""
    async with plane.running():
        engine = await plane.register()
        lease = await plane.held_lease(engine, full(retention_of()))

        await plane.directory.deregister("d0", engine.epoch)
        await plane.settle()

        assert plane.manager.get(lease.name).end_reason is EndReason.ENGINE_LOST


async def test_an_ended_lease_has_no_handle(plane: StatePlane) -> None:
    """Nobody is given the means to read blocks that are free."""
    engine = await plane.register()
    lease = await plane.held_lease(engine, full(retention_of()))

    await plane.report(engine, EngineReport(ended=(("r1", EndReason.RECLAIMED),)))

    assert plane.manager.get(lease.name).handle == Handle(b"{}")


async def test_late_news_of_a_loss_does_not_touch_the_successor(plane: StatePlane) -> None:
    """Leases of a newer registration outlive the loss of an older one."""
    lost = await plane.register()
    engine = await plane.register()
    lease = await plane.held_lease(engine, full(retention_of()))

    await plane.manager.observe(replace(lost, state=type(lost.state).LOST))
    await plane.manager.observe_gone("d0")

    assert plane.manager.get(lease.name).state is LeaseState.ACTIVE
