"""What holders, gateways and readers ask of the manager."""

import uuid
from dataclasses import replace

import pytest

from kvplane_services.errors import (
    EpochStale,
    FailedPrecondition,
    InvalidRequest,
    LeaseFenced,
    NotFound,
)
from kvplane_services.lease.config import LeaseConfig
from kvplane_services.lease.model import Claim, EndReason, LeaseState, RenewalOutcome
from kvplane_services.lease.ports import LeaseRenewal
from kvplane_services.lease.reports import EngineReport
from kvplane_services.store.model import Removed
from kvplane_services.store.paging import PageRequest
from tests.support.state_plane import StatePlane
from tests.support.state_values import (
    engine_of,
    full,
    held,
    key_of,
    lease_for,
    retention_of,
    stock_engine,
)


async def test_a_claim_stands_and_is_shown(plane: StatePlane) -> None:
    """Readers see who claims a lease, and for how long still."""
    lease = await plane.held_lease(await plane.register(), full(retention_of()))

    (result,) = plane.manager.claim("h", [LeaseRenewal(lease.name, lease.fencing_token, 20.0)])
    await plane.clock.advance(5)

    assert (result.outcome, result.ttl) == (RenewalOutcome.RENEWED, 20.0)
    assert (Claim("h", 15.0),) == plane.manager.get(lease.name).claims


@pytest.mark.parametrize(
    ("asked", "granted"), [(0.0, 30.0), (0.01, 1.0), (1e6, 600.0), (-1.0, 1.0)]
)
async def test_claims_are_clamped(plane: StatePlane, asked: float, granted: float) -> None:
    """A length out of bounds is granted as far as the bounds go; zero means the default."""
    lease = await plane.held_lease(await plane.register(), full(retention_of()))

    (result,) = plane.manager.claim("h", [LeaseRenewal(lease.name, lease.fencing_token, asked)])

    assert granted == result.ttl


async def test_outcomes_are_per_lease_and_in_order(plane: StatePlane) -> None:
    """One bad renewal does not spoil its neighbours."""
    engine = await plane.register()
    lease = await plane.held_lease(engine, full(retention_of("r1", "a")))
    over = await plane.held_lease(engine, held(retention_of("r2", "b")))
    await plane.report(engine, EngineReport(ended=(("r2", EndReason.RECLAIMED),)))
    renewals = [
        LeaseRenewal(lease.name, lease.fencing_token),
        LeaseRenewal(lease.name, lease.fencing_token - 1),
        LeaseRenewal(lease.name, lease.fencing_token + 1),
        LeaseRenewal(over.name, over.fencing_token),
        LeaseRenewal("leases/unknown", 1),
        LeaseRenewal("nonsense", 1),
    ]

    outcomes = await plane.manager.renew("h", renewals)

    assert outcomes == [
        RenewalOutcome.RENEWED,
        RenewalOutcome.FENCED,
        RenewalOutcome.FENCED,
        RenewalOutcome.NOT_FOUND,
        RenewalOutcome.NOT_FOUND,
        RenewalOutcome.NOT_FOUND,
    ]


async def test_a_lease_on_its_way_out_cannot_be_claimed(plane: StatePlane) -> None:
    """Handles of a superseded lease are no longer given out, so holders drop it."""
    engine = await plane.register()
    lease = await plane.held_lease(engine, full(retention_of("r1")))
    await plane.report(engine, held(retention_of("r2")))

    outcomes = await plane.manager.renew("h", [LeaseRenewal(lease.name, lease.fencing_token)])

    assert outcomes == [RenewalOutcome.NOT_FOUND]


async def test_a_claim_on_a_lease_on_its_way_out_can_be_dropped(plane: StatePlane) -> None:
    """A turn's claim ends with the turn, also when the lease was superseded meanwhile.

    The holder is told that there is nothing left to claim.
    """
    engine = await plane.register()
    lease = await plane.held_lease(engine, full(retention_of("r1")))
    await plane.manager.renew("h", [LeaseRenewal(lease.name, lease.fencing_token)])
    await plane.report(engine, held(retention_of("r2")))
    drop = LeaseRenewal(lease.name, lease.fencing_token, drop=True)

    outcomes = await plane.manager.renew("h", [drop])

    assert outcomes == [RenewalOutcome.NOT_FOUND]
    assert plane.manager.get(lease.name).claims == ()


async def test_a_dropped_claim_is_gone(plane: StatePlane) -> None:
    """Giving a claim up twice is no error."""
    lease = await plane.held_lease(await plane.register(), full(retention_of()))
    await plane.manager.renew("h", [LeaseRenewal(lease.name, lease.fencing_token)])
    drop = LeaseRenewal(lease.name, lease.fencing_token, drop=True)

    outcomes = [*await plane.manager.renew("h", [drop]), *await plane.manager.renew("h", [drop])]

    assert outcomes == [RenewalOutcome.RENEWED] * 2
    assert plane.manager.get(lease.name).claims == ()


async def test_the_number_of_claims_on_a_lease_is_bounded() -> None:
    """One more holder is put off, while those who have a claim renew it."""
    plane = StatePlane(leases=LeaseConfig(max_claims=2))
    lease = await plane.held_lease(await plane.register(), full(retention_of()))
    renewal = [LeaseRenewal(lease.name, lease.fencing_token)]

    outcomes = [(await plane.manager.renew(holder, renewal))[0] for holder in "abca"]

    assert outcomes == [
        RenewalOutcome.RENEWED,
        RenewalOutcome.RENEWED,
        RenewalOutcome.UNAVAILABLE,
        RenewalOutcome.RENEWED,
    ]


@pytest.mark.parametrize("holder", ["", "x" * 257])
async def test_holders_have_a_name(plane: StatePlane, holder: str) -> None:
    """A frame without a usable holder is malformed."""
    with pytest.raises(InvalidRequest):
        plane.manager.claim(holder, [])


async def test_frames_are_bounded(plane: StatePlane) -> None:
    """A frame has at most 1024 renewals."""
    renewal = LeaseRenewal("leases/x", 1)

    assert len(plane.manager.claim("h", [renewal] * 1024)) == 1024
    with pytest.raises(InvalidRequest, match="at most 1024"):
        plane.manager.claim("h", [renewal] * 1025)


async def test_claims_are_no_events(plane: StatePlane) -> None:
    """Renewals are not told to followers, nor written to the store."""
    lease = await plane.held_lease(await plane.register(), full(retention_of()))
    async with plane.recorded_leases() as events:
        await plane.manager.renew("h", [LeaseRenewal(lease.name, lease.fencing_token)])
        await plane.manager.sweep()

    assert events == []


async def test_a_released_lease_is_over_when_the_engine_says_so(plane: StatePlane) -> None:
    """It is told to the engine once, and releasing it again does nothing."""
    engine = await plane.register()
    lease = await plane.held_lease(engine, full(retention_of()))

    await plane.manager.release(lease.name, lease.fencing_token)
    await plane.manager.release(lease.name, lease.fencing_token)

    (directive,) = (await plane.report(engine, held())).directives
    assert directive.release is EndReason.RELEASED
    assert (await plane.report(engine, held())).directives == ()
    await plane.report(engine, EngineReport(ended=(("r1", EndReason.EXPIRED),)))
    assert plane.manager.get(lease.name).end_reason is EndReason.RELEASED
    await plane.manager.release(lease.name, lease.fencing_token)


async def test_a_superseded_lease_that_is_released_stays_superseded(plane: StatePlane) -> None:
    """The first reason stands, and the engine is not told twice."""
    engine = await plane.register()
    lease = await plane.held_lease(engine, full(retention_of("r1")))
    await plane.report(engine, held(retention_of("r2")))

    await plane.manager.release(lease.name, lease.fencing_token)

    assert (await plane.report(engine, held())).directives == ()
    await plane.report(engine, EngineReport(ended=(("r1", EndReason.RELEASED),)))
    assert plane.manager.get(lease.name).end_reason is EndReason.SUPERSEDED


async def test_a_release_with_another_token_is_refused(plane: StatePlane) -> None:
    """Whoever holds a stale token cannot end its successor's lease."""
    lease = await plane.held_lease(await plane.register(), full(retention_of()))

    with pytest.raises(LeaseFenced):
        await plane.manager.release(lease.name, lease.fencing_token - 1)

    assert plane.manager.get(lease.name).state is LeaseState.ACTIVE


async def test_releasing_what_is_gone_succeeds(plane: StatePlane) -> None:
    """Unknown leases count as gone; what is no name is refused."""
    await plane.manager.release("leases/unknown", 1)

    with pytest.raises(InvalidRequest):
        await plane.manager.release("nonsense", 1)


async def test_ended_leases_are_remembered_for_a_while(plane: StatePlane) -> None:
    """An ended lease says why until it is forgotten; then followers are told it is gone."""
    engine = await plane.register()
    lease = await plane.held_lease(engine, full(retention_of()))
    await plane.report(engine, EngineReport(ended=(("r1", EndReason.RECLAIMED),)))
    watch = plane.manager.watch(after=plane.store.revision)
    await anext(watch)
    await plane.clock.advance(599)
    await plane.manager.sweep()
    assert plane.manager.get(lease.name).end_reason is EndReason.RECLAIMED

    await plane.clock.advance(1)
    await plane.manager.sweep()

    with pytest.raises(NotFound):
        plane.manager.get(lease.name)
    assert isinstance(await anext(watch), Removed)


async def test_the_number_of_remembered_leases_is_bounded() -> None:
    """The one that ended first is forgotten first."""
    plane = StatePlane(leases=LeaseConfig(max_ended=2))
    engine = await plane.register()
    names = [
        (await plane.held_lease(engine, held(retention_of(f"r{n}", str(n))))).name for n in range(3)
    ]
    for number in range(3):
        await plane.report(engine, EngineReport(ended=((f"r{number}", EndReason.RECLAIMED),)))

    await plane.manager.sweep()

    with pytest.raises(NotFound):
        plane.manager.get(names[0])
    assert plane.manager.get(names[1]).state is LeaseState.ENDED


async def test_names_that_are_none(plane: StatePlane) -> None:
    """A reader is told what a name looks like."""
    with pytest.raises(InvalidRequest, match=r"leases/\{lease\}"):
        plane.manager.get("nonsense")


async def test_listing(plane: StatePlane) -> None:
    """Filters narrow a listing; ended leases are shown on request."""
    first, second = await plane.register(engine_of("d0")), await plane.register(engine_of("d1"))
    await plane.report(first, full(retention_of("r1", "a"), retention_of("r2", "b")))
    await plane.report(second, full(retention_of("r3", "c")))
    await plane.report(first, EngineReport(ended=(("r1", EndReason.RECLAIMED),)))

    async def retentions(**filters: object) -> set[str]:
        page = await plane.manager.list(PageRequest(), **filters)  # type: ignore[arg-type]
        return {lease.retention_id for lease in page.items}

    assert {"r2", "r3"} == await retentions()
    assert {"r1", "r2", "r3"} == await retentions(include_ended=True)
    assert {"r2"} == await retentions(engine_id="d0")
    assert {"r1"} == await retentions(session_key=key_of("a"), include_ended=True)
    assert set() == await retentions(session_key=key_of("a"))


async def test_a_stock_engines_retention_is_leased_for_a_fixed_time(plane: StatePlane) -> None:
    """Nothing renews it, claims included; it expires at its TTL and a grace."""
    engine = await plane.register(stock_engine(), ttl=300.0)
    grant = await plane.manager.grant(lease_for(engine), ttl=60.0)
    renewal = [LeaseRenewal(grant.lease.name, grant.lease.fencing_token, 600.0)]

    await plane.clock.advance(50)
    (result,) = plane.manager.claim("h", renewal)
    assert (result.outcome, result.ttl) == (RenewalOutcome.RENEWED, 10.0)
    await plane.clock.advance(11)
    assert await plane.manager.renew("h", renewal) == [RenewalOutcome.NOT_FOUND]
    await plane.clock.advance(3.9)
    await plane.manager.sweep()
    assert plane.manager.get(grant.lease.name).state is LeaseState.ACTIVE
    await plane.clock.advance(0.1)
    await plane.manager.sweep()

    assert grant.ttl == 60.0
    assert plane.manager.get(grant.lease.name).end_reason is EndReason.EXPIRED


@pytest.mark.parametrize(("asked", "granted"), [(0.01, 0.01), (1e6, 3600.0)])
async def test_fixed_ttls_are_clamped(plane: StatePlane, asked: float, granted: float) -> None:
    """The engine keeps no longer than was asked, and nothing is leased for a day."""
    engine = await plane.register(stock_engine())

    assert granted == (await plane.manager.grant(lease_for(engine), ttl=asked)).ttl


async def test_a_full_report_does_not_end_fixed_leases(plane: StatePlane) -> None:
    """Whoever beats for a stock engine has nothing to report, and that says nothing."""
    engine = await plane.register(stock_engine())
    grant = await plane.manager.grant(lease_for(engine), ttl=60.0)

    answer = await plane.report(engine, full())

    assert not answer.full_report_needed
    assert plane.manager.get(grant.lease.name).state is LeaseState.ACTIVE


async def test_fixed_leases_supersede_each_other(plane: StatePlane) -> None:
    """The session's older lease is no longer given out, and ends at its time."""
    engine = await plane.register(stock_engine(), ttl=300.0)
    older = await plane.manager.grant(lease_for(engine, "r1"), ttl=60.0)
    await plane.manager.grant(lease_for(engine, "r2"), ttl=60.0)

    assert plane.manager.get(older.lease.name).state is LeaseState.RELEASING
    await plane.clock.advance(65)
    await plane.manager.sweep()
    assert plane.manager.get(older.lease.name).end_reason is EndReason.SUPERSEDED


async def test_a_retried_grant_returns_the_first_answer(plane: StatePlane) -> None:
    """Neither the same request id nor the same retention gets a second lease."""
    engine = await plane.register(stock_engine())
    request_id = str(uuid.uuid4())
    first = await plane.manager.grant(lease_for(engine), ttl=60.0, request_id=request_id)

    retried = await plane.manager.grant(lease_for(engine), ttl=60.0, request_id=request_id)
    other = await plane.manager.grant(lease_for(engine), ttl=60.0)

    assert first == retried
    assert other.lease.fencing_token == first.lease.fencing_token


async def test_a_retry_finds_its_lease_even_if_that_is_over(plane: StatePlane) -> None:
    """A late retry is told of the first grant; it does not lease what is gone once more."""
    engine = await plane.register(stock_engine(), ttl=300.0)
    request_id = str(uuid.uuid4())
    first = await plane.manager.grant(lease_for(engine), ttl=10.0, request_id=request_id)
    await plane.clock.advance(15)
    await plane.manager.sweep()

    again = await plane.manager.grant(lease_for(engine), ttl=10.0, request_id=request_id)

    assert again.lease.name == first.lease.name
    assert again.lease.state is LeaseState.ENDED


async def test_grants_are_refused_where_they_make_no_sense(plane: StatePlane) -> None:
    """Unknown engine, stale epoch, an engine that reports by itself, no TTL: each says why."""
    engine = await plane.register(stock_engine())
    own = await plane.register(engine_of())

    with pytest.raises(NotFound):
        await plane.manager.grant(replace(lease_for(engine), engine_id="x"), ttl=60.0)
    with pytest.raises(EpochStale):
        await plane.manager.grant(replace(lease_for(engine), engine_epoch=1), ttl=60.0)
    with pytest.raises(FailedPrecondition, match="on its heartbeats"):
        await plane.manager.grant(lease_for(own), ttl=60.0)
    with pytest.raises(InvalidRequest, match="ttl"):
        await plane.manager.grant(lease_for(engine), ttl=0.0)
    with pytest.raises(InvalidRequest, match="retention_id"):
        await plane.manager.grant(lease_for(engine, ""), ttl=60.0)


async def test_its_loop_expires_leases(plane: StatePlane) -> None:
    """The sweep runs by itself."""
    async with plane.running():
        engine = await plane.register(ttl=300.0)
        lease = await plane.held_lease(engine, full(retention_of()))

        await plane.clock.advance(36)

        assert plane.manager.get(lease.name).state is LeaseState.ENDED
