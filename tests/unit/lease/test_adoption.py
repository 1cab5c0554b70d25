"""How a restarted plane takes over the leases of its predecessor."""

import pytest

from kvplane_services.lease.model import EndReason, LeaseState
from kvplane_services.lease.reports import EngineReport
from tests.support.state_plane import StatePlane, by_retention
from tests.support.state_values import engine_of, full, held, retention_of


async def test_a_restarted_plane_adopts_leases(plane: StatePlane) -> None:
    """A plane that lost its memory takes leases up under the same names and tokens."""
    before = plane
    engine = await before.register()
    lease = await before.held_lease(engine, full(retention_of()))
    await before.clock.advance(1)
    after = StatePlane(clock=before.clock)
    engine = await after.register(engine)
    reported = retention_of(lease=lease.name, fencing_token=lease.fencing_token, reads=2)

    answer = await after.report(engine, full(reported))

    (directive,) = answer.directives
    assert (lease.name, lease.fencing_token) == (directive.lease, directive.fencing_token)
    adopted = after.manager.get(lease.name)
    assert adopted.engine_epoch == engine.epoch
    assert adopted.reads == 2


async def test_tokens_after_an_adoption_are_larger(plane: StatePlane) -> None:
    """Even an adopted token from a clock that ran ahead is smaller than all that follow."""
    engine = await plane.register()
    an_hour = 3600 * 1_000_000
    ahead = await plane.store.sequence("tokens").next() + an_hour
    await plane.report(
        engine, full(retention_of("r1", "a", lease="leases/old", fencing_token=ahead))
    )

    answer = await plane.report(engine, held(retention_of("r2", "b")))

    assert answer.directives[0].fencing_token > ahead


async def test_of_adopted_leases_the_newest_stays(plane: StatePlane) -> None:
    """In whichever order they are reported, the largest token is the session's."""
    engine = await plane.register()
    newer = retention_of("r2", lease="leases/new", fencing_token=20)
    older = retention_of("r1", lease="leases/old", fencing_token=10)

    answer = by_retention(await plane.report(engine, full(newer, older)))

    assert answer["r1"].release is EndReason.SUPERSEDED
    assert answer["r2"].renew == 30.0


async def test_an_ended_lease_is_not_adopted(plane: StatePlane) -> None:
    """A name that said why it ended does not come back to life; the blocks get another lease."""
    engine = await plane.register()
    lease = await plane.held_lease(engine, full(retention_of()))
    await plane.report(engine, EngineReport(ended=(("r1", EndReason.RECLAIMED),)))
    reported = retention_of(lease=lease.name, fencing_token=lease.fencing_token)

    answer = await plane.report(engine, held(reported))

    assert answer.directives[0].lease != lease.name
    assert answer.directives[0].fencing_token == lease.fencing_token
    assert plane.manager.get(lease.name).state is LeaseState.ENDED


async def test_an_engine_that_comes_back_leaves_newer_turns_alone(plane: StatePlane) -> None:
    """What it still holds of a session is older than what another engine got meanwhile."""
    first, second = await plane.register(engine_of("d0")), await plane.register(engine_of("d1"))
    older = await plane.held_lease(first, full(retention_of("r1")))
    await plane.directory.deregister("d0", first.epoch)
    await plane.manager.observe_gone("d0")
    newer = await plane.held_lease(second, full(retention_of("r2")))
    assert plane.manager.get(older.name).end_reason is EndReason.ENGINE_LOST

    first = await plane.register(first)
    reported = retention_of("r1", lease=older.name, fencing_token=older.fencing_token)
    answer = await plane.report(first, full(reported))

    assert by_retention(answer)["r1"].release is EndReason.SUPERSEDED
    assert plane.manager.get(newer.name).state is LeaseState.ACTIVE


async def test_what_was_given_up_does_not_come_back_with_its_engine(plane: StatePlane) -> None:
    """A release that the engine has not heard of is told when it registers again."""
    engine = await plane.register()
    lease = await plane.held_lease(engine, full(retention_of()))
    await plane.manager.release(lease.name, lease.fencing_token)
    engine = await plane.register(engine)
    reported = retention_of(lease=lease.name, fencing_token=lease.fencing_token)

    answer = await plane.report(engine, full(reported))

    assert by_retention(answer)["r1"].release is EndReason.RELEASED


async def test_a_lease_of_another_engine_is_not_adopted(plane: StatePlane) -> None:
    """An engine cannot take over what another one holds."""
    first, second = await plane.register(engine_of("d0")), await plane.register(engine_of("d1"))
    lease = await plane.held_lease(first, full(retention_of("r1", "a")))
    stolen = retention_of("r1", "b", lease=lease.name, fencing_token=lease.fencing_token)

    answer = await plane.report(second, full(stolen))

    assert answer.directives[0].lease != lease.name
    assert plane.manager.get(lease.name).engine_id == "d0"


@pytest.mark.parametrize(
    ("lease", "token"),
    [
        ("leases/../x", 5),
        ("x", 5),
        ("leases/x", 0),
        ("leases/x", -5),
        ("leases/x", 1 << 60),
        ("leases/x", (1 << 63) - 1),
    ],
)
async def test_broken_names_and_tokens_are_not_adopted(
    plane: StatePlane, lease: str, token: int
) -> None:
    """What cannot be a lease of an earlier life gets a new one."""
    engine = await plane.register()

    answer = await plane.report(engine, full(retention_of(lease=lease, fencing_token=token)))

    assert answer.directives[0].lease != lease
    assert 0 < answer.directives[0].fencing_token < 1 << 60


async def test_adopted_tokens_do_not_climb_without_end(plane: StatePlane) -> None:
    """Tokens that run ahead are measured by the plane's own, never by each other."""
    engine = await plane.register()
    start = await plane.store.sequence("tokens").next()
    a_week = 7 * 24 * 3600 * 1_000_000
    taken_up = 0
    for number in range(1, 100):
        name, token = f"leases/l{number}", start + number * a_week
        report = held(retention_of(f"r{number}", f"s{number}", lease=name, fencing_token=token))
        (directive,) = (await plane.report(engine, report)).directives
        taken_up += directive.lease == name

    assert 1 <= taken_up < 10
