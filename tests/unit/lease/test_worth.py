"""Which leases the plane holds to be worth their memory, and what engines are told of it."""

from dataclasses import replace

import pytest

from kvplane_services.engine.model import Engine, EngineLoad, KvLayout
from kvplane_services.errors import InvalidRequest
from kvplane_services.lease.config import LeaseConfig
from kvplane_services.lease.model import EndReason, Lease, LeaseState
from kvplane_services.lease.ports import LeaseRenewal
from kvplane_services.lease.reports import EngineReport
from kvplane_services.lease.wire import directive_to_wire
from kvplane_services.lease.worth import RecomputeCost, worth_per_block
from tests.support.state_plane import StatePlane, by_retention
from tests.support.state_values import engine_of, full, held, retention_of


async def turn(
    plane: StatePlane, engine: Engine, session: str, number: int, **values: int
) -> Lease:
    """Ends a turn of a session; returns the lease on what it left."""
    report = EngineReport((retention_of(f"{session}-{number}", session, **values),))
    return await plane.held_lease(engine, report)


async def claim(plane: StatePlane, lease: Lease, holder: str, ttl: float = 5.0) -> None:
    await plane.manager.renew(holder, [LeaseRenewal(lease.name, lease.fencing_token, ttl)])


async def worths(plane: StatePlane, engine: Engine) -> dict[str, float]:
    answer = await plane.report(engine, held())
    return {name: each.worth for name, each in by_retention(answer).items()}


def sized(budget: float | None = None) -> Engine:
    layout = KvLayout(block_size=16, total_blocks=100)
    return replace(engine_of(layout=layout), retention_budget=budget)


def test_worth_is_what_a_return_saves_by_what_is_held() -> None:
    """Twice the blocks for the same tokens are worth half; a longer context saves more a token."""
    cost = RecomputeCost(per_token=0.125, per_token_squared=1.5e-6)

    assert cost.of(12_000) == pytest.approx(1716.0)
    assert worth_per_block(0.01, 1716.0, 750) == 2 * worth_per_block(0.01, 1716.0, 1500)
    assert worth_per_block(0.01, 1716.0, 0) > 0


async def test_engines_are_told_what_a_lease_is_worth() -> None:
    """With each renewal; it falls while a session is away."""
    plane = StatePlane()
    engine = await plane.register(sized())
    await plane.report(engine, full(retention_of("a-1", "a")))
    told = []
    for _ in range(3):
        await plane.clock.advance(40)
        told.append((await worths(plane, engine))["a-1"])

    assert told == sorted(told, reverse=True)
    assert told[0] > told[2] > 0


async def test_a_wish_raises_what_a_lease_is_worth() -> None:
    """Also after the claim has run out; a router's claim is a turn and no wish."""
    plane = StatePlane()
    engine = await plane.register(sized())
    leases = {name: await turn(plane, engine, name, 1) for name in "abc"}
    await claim(plane, leases["a"], "sessions/x")
    await claim(plane, leases["b"], "routers/x")
    await plane.clock.advance(10)

    told = await worths(plane, engine)

    assert told["a-1"] > 2 * told["b-1"]
    assert told["b-1"] == pytest.approx(told["c-1"], rel=0.5)


async def test_sessions_that_come_back_are_worth_more() -> None:
    """What is learnt from returns counts for all sessions of their kind."""
    before: list[float] = []
    after: list[float] = []
    for learnt, told in ((False, before), (True, after)):
        plane = StatePlane(leases=LeaseConfig(retention_budget=1.0))
        engine = await plane.register(sized())
        for number in range(60 if learnt else 0):
            one = await turn(plane, engine, f"s{number}", 1)
            await plane.clock.advance(30)
            await claim(plane, one, "routers/x")
            await plane.report(engine, EngineReport(ended=((f"s{number}-1", EndReason.EXPIRED),)))
        await plane.manager.sweep()
        await turn(plane, engine, "new", 1)
        await plane.clock.advance(10)
        told.append((await worths(plane, engine))["new-1"])

    assert after[0] > 2 * before[0]


async def test_an_engines_own_budget_goes_before_the_planes() -> None:
    """It may be larger or smaller."""
    kept = []
    for budget in (None, 0.2, 1.0):
        plane = StatePlane(leases=LeaseConfig(retention_budget=0.5))
        engine = await plane.register(sized(budget))
        for number in range(4):
            await turn(plane, engine, f"s{number}", 1, blocks=20)
        await plane.clock.advance(10)
        kept.append(len(await worths(plane, engine)))

    assert kept == [2, 1, 4]


@pytest.mark.parametrize("budget", [-0.1, 1.1, float("nan")])
async def test_a_budget_is_a_part(budget: float) -> None:
    """Anything else is refused with the registration."""
    with pytest.raises(InvalidRequest, match="retention_budget"):
        await StatePlane().register(sized(budget))


async def test_over_the_budget_what_is_worth_most_is_renewed() -> None:
    """Not what is newest: a session that wishes to be kept outranks a later one."""
    plane = StatePlane(leases=LeaseConfig(retention_budget=0.3))
    engine = await plane.register(sized())
    wished = await turn(plane, engine, "wished", 1, blocks=25)
    await claim(plane, wished, "sessions/x", ttl=1.0)
    await plane.clock.advance(1)
    await turn(plane, engine, "later", 1, blocks=25)
    await plane.clock.advance(10)

    assert set(await worths(plane, engine)) == {"wished-1"}


async def test_ends_are_counted_by_reason() -> None:
    """Each lease once, at its engine's home."""
    plane = StatePlane()
    engine = await plane.register(sized())
    await turn(plane, engine, "a", 1)
    await turn(plane, engine, "b", 1)
    for _ in range(2):
        ended = (("a-1", EndReason.RECLAIMED), ("b-1", EndReason.EXPIRED))
        await plane.report(engine, EngineReport(ended=ended))

    counts = {reason: count for reason, count in plane.manager.ends.items() if count}
    assert counts == {EndReason.RECLAIMED: 1, EndReason.EXPIRED: 1}


async def test_worth_goes_over_the_wire() -> None:
    """As the engine's client reads it."""
    plane = StatePlane()
    engine = await plane.register(sized())
    (directive,) = (await plane.report(engine, full(retention_of()))).directives

    assert directive_to_wire(directive).worth == directive.worth > 0


async def test_what_was_said_to_be_final_goes_first() -> None:
    """Over the budget, though it is the newest: it is not renewed, and the others are."""
    plane = StatePlane()
    engine = await plane.register(sized(budget=0.25))
    for name in ("a", "b"):
        await turn(plane, engine, name, 1, blocks=10)
    lease = await turn(plane, engine, "c", 1, blocks=10)
    last = LeaseRenewal(lease.name, lease.fencing_token, drop=True, final=True)
    await plane.manager.renew("sessions/c", [last])
    await plane.clock.advance(11)

    assert set(await worths(plane, engine)) == {"a-1", "b-1"}
    assert plane.manager.get(lease.name).state is LeaseState.ACTIVE


async def test_under_pressure_what_was_said_to_be_final_goes_first() -> None:
    """It is released, and what is left of the memory is enough for the others."""
    plane = StatePlane(leases=LeaseConfig(pressure_after=0.0))
    engine = await plane.register(sized())
    for name in ("a", "b"):
        await turn(plane, engine, name, 1, blocks=10)
    lease = await turn(plane, engine, "c", 1, blocks=10)
    last = LeaseRenewal(lease.name, lease.fencing_token, drop=True, final=True)
    await plane.manager.renew("sessions/c", [last])
    short = replace(engine, load=EngineLoad(waiting_requests=1, running_requests=1, used_blocks=95))

    answer = await plane.report(short, held())

    assert {name: each.release for name, each in by_retention(answer).items()} == {
        "c-1": EndReason.RECLAIMED
    }


async def test_a_read_takes_back_that_no_use_was_expected() -> None:
    """The conversation is back, whoever routed it."""
    plane = StatePlane()
    engine = await plane.register(sized())
    lease = await turn(plane, engine, "a", 1)
    last = LeaseRenewal(lease.name, lease.fencing_token, drop=True, final=True)
    await plane.manager.renew("sessions/a", [last])
    await plane.clock.advance(11)
    told = (await worths(plane, engine))["a-1"]

    await plane.report(engine, EngineReport(reads=(("a-1", 1),)))
    await plane.clock.advance(11)

    assert (await worths(plane, engine))["a-1"] > 5 * told
