"""What the manager does with what engines report that they hold."""

import pytest

from kvplane_services.lease.model import EndReason, Handle, LeaseState
from kvplane_services.lease.reports import Directive, EngineReport
from tests.support.state_plane import StatePlane, by_retention
from tests.support.state_values import engine_of, full, handle_of, held, key_of, retention_of


async def test_a_retention_gets_a_lease(plane: StatePlane) -> None:
    """The engine is told its name, its token and its TTL; readers see all that was reported."""
    engine = await plane.register()
    retention = retention_of(message_digest=b"digest")

    answer = await plane.report(engine, full(retention))

    (directive,) = answer.directives
    lease = plane.manager.get(directive.lease)
    assert directive.worth > 0
    expected = Directive("r1", lease.name, lease.fencing_token, renew=30.0, worth=directive.worth)
    assert expected == directive
    assert not answer.full_report_needed
    assert lease.state is LeaseState.ACTIVE
    assert (key_of(), "d0", engine.epoch, "r1") == (
        lease.session_key,
        lease.engine_id,
        lease.engine_epoch,
        lease.retention_id,
    )
    assert (64, 4, retention.handle, b"digest", retention.decision_id) == (
        lease.tokens,
        lease.blocks,
        lease.handle,
        lease.message_digest,
        lease.decision_id,
    )
    assert lease.ttl == 30.0
    assert lease.expire_time is not None
    assert (lease.expire_time - plane.clock.wall()).total_seconds() == 35.0


async def test_every_grant_has_a_larger_token(plane: StatePlane) -> None:
    """Tokens grow from grant to grant, on whichever engine."""
    first, second = await plane.register(engine_of("d0")), await plane.register(engine_of("d1"))
    tokens = [
        (await plane.held_lease(engine, full(retention_of("r", str(number))))).fencing_token
        for number, engine in enumerate((first, second))
    ]

    assert sorted(set(tokens)) == tokens


async def test_a_repeated_report_grants_nothing_new(plane: StatePlane) -> None:
    """Frames stand alone and may be repeated: the lease stays the same."""
    engine = await plane.register()
    first = await plane.report(engine, full(retention_of()))

    again = await plane.report(engine, full(retention_of()))

    assert first.directives == again.directives


async def test_a_delta_without_a_full_report_asks_for_one(plane: StatePlane) -> None:
    """Until the plane has seen everything once it says so, and grants all the same."""
    engine = await plane.register()

    answer = await plane.report(engine, held(retention_of()))

    assert answer.full_report_needed
    assert len(answer.directives) == 1
    assert not (await plane.report(engine, full(retention_of()))).full_report_needed
    assert not (await plane.report(engine, held())).full_report_needed


async def test_a_new_registration_needs_a_full_report_of_its_own(plane: StatePlane) -> None:
    """What an earlier registration reported says nothing about the present one."""
    await plane.report(await plane.register(), full())

    assert (await plane.report(await plane.register(), held())).full_report_needed


async def test_reads_are_counted(plane: StatePlane) -> None:
    """The engine's count is taken over, and never goes back."""
    engine = await plane.register()
    lease = await plane.held_lease(engine, full(retention_of()))
    for reads in (1, 3, 2):
        await plane.report(engine, EngineReport(reads=(("r1", reads),)))

    assert plane.manager.get(lease.name).reads == 3

    await plane.report(engine, held(retention_of(reads=7)))
    assert plane.manager.get(lease.name).reads == 7


async def test_reads_alone_are_no_event(plane: StatePlane) -> None:
    """Followers are not told of every read."""
    engine = await plane.register()
    await plane.report(engine, full(retention_of()))
    async with plane.recorded_leases() as events:
        await plane.report(engine, EngineReport(reads=(("r1", 1),)))

    assert events == []


async def test_a_refreshed_handle_replaces_the_old_one(plane: StatePlane) -> None:
    """After a renewal the engine exports a new expiry: same lease, same token, new handle."""
    engine = await plane.register()
    lease = await plane.held_lease(engine, full(retention_of()))
    known = retention_of(handle=handle_of(2.0), lease=lease.name, fencing_token=lease.fencing_token)
    async with plane.recorded_leases() as events:
        answer = await plane.report(engine, held(known))
        await plane.report(engine, held(known))

    assert answer.directives == ()
    refreshed = plane.manager.get(lease.name)
    assert handle_of(2.0) == refreshed.handle
    assert lease.fencing_token == refreshed.fencing_token
    assert [handle_of(2.0)] == [event.value.handle for event in events]


async def test_an_engine_that_does_not_know_the_lease_is_told_again(plane: StatePlane) -> None:
    """An engine that reports a retention without its lease missed the answer."""
    engine = await plane.register()
    first = await plane.report(engine, full(retention_of()))

    again = await plane.report(engine, held(retention_of(handle=handle_of(2.0))))

    assert first.directives == again.directives


async def test_a_retention_no_lease_can_be_granted_on_is_released(plane: StatePlane) -> None:
    """One request's broken parameters cost its own retention, and nobody else's."""
    engine = await plane.register()
    broken = retention_of("bad", handle=Handle(b"no json"))

    answer = await plane.report(engine, full(broken, retention_of("good")))

    directives = by_retention(answer)
    assert directives["bad"].release is EndReason.RELEASED
    assert directives["good"].renew == 30.0


@pytest.mark.parametrize("name", ["", "r" * 513, "\u00e4" * 257])
async def test_a_name_that_is_refused_spoils_no_frame(plane: StatePlane, name: str) -> None:
    """That retention is to be released; the others have their leases, and no lease lapses."""
    engine = await plane.register()
    lease = await plane.held_lease(engine, full(retention_of("r1", "a")))
    await plane.clock.advance(20)

    answer = await plane.report(engine, held(retention_of(name, "b"), retention_of("r2", "c")))

    directives = by_retention(answer)
    assert directives[name].release is EndReason.RELEASED
    assert directives["r2"].lease
    assert (directives["r1"].lease, directives["r1"].renew) == (lease.name, 30.0)


async def test_a_report_that_was_overtaken_is_not_taken_in(plane: StatePlane) -> None:
    """A report of an earlier registration grants nothing, though its heartbeat was in time."""
    stale = await plane.register()
    await plane.register()

    answer = await plane.manager.report(stale, full(retention_of()))

    assert answer.directives == ()
    assert plane.manager._ledger.on_engine("d0") == []
