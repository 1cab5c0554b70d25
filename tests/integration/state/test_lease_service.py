"""LeaseService over a socket."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc.aio
import pytest

from kvplane.api.engine.v1 import engine_pb2
from kvplane.api.lease.v1 import lease_pb2 as pb
from kvplane_services.durations import duration
from kvplane_services.engine.model import Engine, FixedRetention
from kvplane_services.lease.model import EndReason, Lease
from kvplane_services.lease.reports import EngineReport
from kvplane_services.lease.wire import lease_from_wire, lease_to_wire
from tests.integration.state.rich_status import rich_status
from tests.integration.state.served_state import EOF, ServedState, serving
from tests.support.state_values import (
    engine_of,
    full,
    held,
    lease_for,
    retention_of,
    stock_engine,
)


@pytest.fixture
async def state() -> AsyncIterator[ServedState]:
    async with serving() as state:
        yield state


async def leased(state: ServedState, retention_id: str = "r1") -> tuple[Engine, Lease]:
    """A registered engine, and a lease on it."""
    engine = await state.plane.register(engine_of(), ttl=300.0)
    return engine, await state.plane.held_lease(engine, full(retention_of(retention_id)))


async def read(call: Any) -> Any:
    return await asyncio.wait_for(call.read(), 10)


async def test_a_lease_travels_as_it_is(state: ServedState) -> None:
    """Every field of a lease survives the way to a client and back."""
    engine, lease = await leased(state)
    await state.plane.manager.renew("h", [])
    await state.leases.BatchRenewLeases(
        pb.BatchRenewLeasesRequest(
            holder="decisions/1",
            renewals=[pb.LeaseRenewal(name=lease.name, fencing_token=lease.fencing_token)],
        )
    )
    await state.plane.report(engine, EngineReport(reads=(("r1", 3),)))

    got = (await state.leases.GetLease(pb.GetLeaseRequest(name=lease.name))).lease

    assert state.plane.manager.get(lease.name) == lease_from_wire(got)
    assert got.session == "sessions/t:m::s"
    assert got.claims[0].holder == "decisions/1"


async def test_renewing_over_a_stream(state: ServedState) -> None:
    """One answer per frame, in order, with an outcome per lease; item problems end nothing."""
    _, lease = await leased(state)
    good = pb.LeaseRenewal(name=lease.name, fencing_token=lease.fencing_token, ttl=duration(5.0))
    stale = pb.LeaseRenewal(name=lease.name, fencing_token=1)
    unknown = pb.LeaseRenewal(name="leases/unknown", fencing_token=1)
    nonsense = pb.LeaseRenewal(name="no name", fencing_token=1)
    negative = pb.LeaseRenewal(
        name=lease.name, fencing_token=lease.fencing_token, ttl=duration(-5.0)
    )
    items = [good, stale, unknown, nonsense, negative]
    call = state.leases.RenewLeases()

    answers = []
    for sequence, renewals in ((5, items), (2, [good]), (9, [])):
        await call.write(pb.RenewLeasesRequest(sequence=sequence, holder="h", renewals=renewals))
        answers.append(await read(call))
    await call.done_writing()

    assert [answer.sequence for answer in answers] == [5, 2, 9]
    assert [
        (lease.name, pb.RENEWAL_OUTCOME_RENEWED, 5),
        (lease.name, pb.RENEWAL_OUTCOME_FENCED, 0),
        ("leases/unknown", pb.RENEWAL_OUTCOME_NOT_FOUND, 0),
        ("no name", pb.RENEWAL_OUTCOME_NOT_FOUND, 0),
        (lease.name, pb.RENEWAL_OUTCOME_RENEWED, 1),
    ] == [(each.name, each.outcome, each.ttl.seconds) for each in answers[0].results]
    assert len(answers[1].results) == 1
    assert list(answers[2].results) == []
    assert {10} == {answer.renew_interval.seconds for answer in answers}
    assert await read(call) is EOF
    assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize(("holder", "count", "field"), [("", 1, "holder"), ("h", 1025, "renewals")])
async def test_a_malformed_frame_ends_the_stream(
    state: ServedState, holder: str, count: int, field: str
) -> None:
    """INVALID_ARGUMENT names the field; the unary twin answers alike."""
    renewals = [pb.LeaseRenewal(name="leases/x", fencing_token=1)] * count
    call = state.leases.RenewLeases()
    await call.write(pb.RenewLeasesRequest(holder=holder, renewals=renewals))

    with pytest.raises(grpc.aio.AioRpcError) as streamed:
        await read(call)
    with pytest.raises(grpc.aio.AioRpcError) as unary:
        await state.leases.BatchRenewLeases(
            pb.BatchRenewLeasesRequest(holder=holder, renewals=renewals)
        )

    for error in (streamed.value, unary.value):
        status = rich_status(error)
        assert (grpc.StatusCode.INVALID_ARGUMENT, (field,)) == (status.code, status.fields)


async def test_releasing(state: ServedState) -> None:
    """A stale token is refused with LEASE_FENCED; what is gone can be released again."""
    engine, lease = await leased(state)

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await state.leases.ReleaseLease(pb.ReleaseLeaseRequest(name=lease.name, fencing_token=1))
    status = rich_status(refused.value)
    assert (status.code, status.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "LEASE_FENCED")

    request = pb.ReleaseLeaseRequest(name=lease.name, fencing_token=lease.fencing_token)
    await state.leases.ReleaseLease(request)
    await state.plane.report(engine, EngineReport(ended=(("r1", EndReason.RELEASED),)))
    await state.leases.ReleaseLease(request)

    got = await state.leases.GetLease(pb.GetLeaseRequest(name=lease.name))
    assert got.lease.end_reason == pb.END_REASON_RELEASED


async def test_granting_on_a_stock_engine(state: ServedState) -> None:
    """A gateway that saw a handle gets a lease on it, once, for the clamped time."""
    engine = await state.plane.register(stock_engine())
    request = pb.GrantLeaseRequest(
        lease=lease_to_wire(lease_for(engine)),
        ttl=duration(1e6),
        request_id=str(uuid.uuid4()),
    )

    first = await state.leases.GrantLease(request)
    again = await state.leases.GrantLease(request)

    assert first.lease.name == again.lease.name
    assert first.ttl.seconds == 3600
    assert first.lease.state == pb.Lease.STATE_ACTIVE


async def test_consuming(state: ServedState) -> None:
    """The first who asks gets an answer, the next one FAILED_PRECONDITION."""
    keeps = FixedRetention(ttl=480.0, trust_history=True)
    engine = await state.plane.register(stock_engine(fixed_retention=keeps))
    asked = replace(lease_for(engine), history_digest=b"so far")
    granted = await state.leases.GrantLease(
        pb.GrantLeaseRequest(lease=lease_to_wire(asked), ttl=duration(60.0))
    )
    lease = granted.lease
    assert lease.history_digest == b"so far"
    request = pb.ConsumeLeaseRequest(name=lease.name, fencing_token=lease.fencing_token)

    await state.leases.ConsumeLease(request)

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await state.leases.ConsumeLease(request)
    assert rich_status(refused.value).code is grpc.StatusCode.FAILED_PRECONDITION
    got = (await state.leases.GetLease(pb.GetLeaseRequest(name=lease.name))).lease
    assert (got.state, got.release_reason) == (
        pb.Lease.STATE_RELEASING,
        pb.END_REASON_CONSUMED,
    )
    found = (await state.engines.GetEngine(engine_pb2.GetEngineRequest(name=engine.name))).engine
    assert found.fixed_retention.ttl.seconds == 480
    assert found.fixed_retention.trust_history


@pytest.mark.parametrize("missing", ["session_key", "engine", "retention_id", "handle", "tokens"])
async def test_incomplete_grants(state: ServedState, missing: str) -> None:
    """INVALID_ARGUMENT names what is missing."""
    engine = await state.plane.register(stock_engine())
    lease = lease_to_wire(lease_for(engine))
    lease.ClearField(missing)  # type: ignore[arg-type]

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await state.leases.GrantLease(pb.GrantLeaseRequest(lease=lease, ttl=duration(60.0)))

    status = rich_status(refused.value)
    assert status.code is grpc.StatusCode.INVALID_ARGUMENT
    assert missing in status.fields[0]


async def test_watching(state: ServedState) -> None:
    """Current leases, synced, then grants and ends, which say why; renewals are not events."""
    engine, lease = await leased(state)
    watch = state.leases.WatchLeases(pb.WatchLeasesRequest())
    assert (await read(watch)).upserted.name == lease.name
    synced = await read(watch)
    assert synced.synced

    await state.plane.manager.renew("h", [])
    await state.plane.report(engine, held(retention_of("r2")))
    await state.plane.report(engine, EngineReport(ended=(("r1", EndReason.RELEASED),)))

    events = [await read(watch) for _ in range(3)]
    assert [(each.upserted.retention_id, each.upserted.state) for each in events[:2]] == [
        ("r2", pb.Lease.STATE_ACTIVE),
        ("r1", pb.Lease.STATE_RELEASING),
    ]
    assert (lease.name, pb.END_REASON_SUPERSEDED) == (
        events[2].ended.name,
        events[2].ended.end_reason,
    )
    resumed = state.leases.WatchLeases(pb.WatchLeasesRequest(after_revision=synced.revision))
    assert events == [await read(resumed) for _ in range(3)]


async def test_a_watch_from_the_start_tells_of_remembered_ends(state: ServedState) -> None:
    """A follower that comes late learns why a session's lease is not there any more."""
    engine, lease = await leased(state)
    await state.plane.report(engine, EngineReport(ended=(("r1", EndReason.RECLAIMED),)))

    watch = state.leases.WatchLeases(pb.WatchLeasesRequest())

    first = await read(watch)
    assert (lease.name, pb.END_REASON_RECLAIMED) == (first.ended.name, first.ended.end_reason)
    assert (await read(watch)).synced


async def test_watching_one_engine(state: ServedState) -> None:
    """Leases of other engines are left out, and bookmarks still move the resume point."""
    await leased(state)
    other = await state.plane.register(engine_of("d1"), ttl=300.0)
    watch = state.leases.WatchLeases(pb.WatchLeasesRequest(engine="engines/d1"))
    begun = await read(watch)
    assert begun.synced

    await state.plane.report(other, full(retention_of("r9", "other")))
    assert (await read(watch)).upserted.engine == "engines/d1"
    await state.plane.clock.advance(31)
    bookmark = await read(watch)

    assert bookmark.synced
    assert bookmark.revision > begun.revision


async def test_watching_from_a_lost_revision(state: ServedState) -> None:
    """OUT_OF_RANGE with WATCH_COMPACTED."""
    watch = state.leases.WatchLeases(pb.WatchLeasesRequest(after_revision=1))

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await read(watch)

    assert rich_status(refused.value).reason == "WATCH_COMPACTED"


async def test_listing(state: ServedState) -> None:
    """Filters are checked and applied."""
    engine, lease = await leased(state)
    await state.plane.report(engine, EngineReport(ended=(("r1", EndReason.RECLAIMED),)))

    async def names(**fields: Any) -> list[str]:
        answer = await state.leases.ListLeases(pb.ListLeasesRequest(**fields))
        assert answer.revision > 0
        return [each.name for each in answer.leases]

    assert await names() == []
    assert [lease.name] == await names(include_ended=True)
    assert [lease.name] == await names(
        include_ended=True, engine="engines/d0", session="sessions/t:m::s"
    )
    assert await names(include_ended=True, engine="engines/d1") == []
    for fields in ({"engine": "d0"}, {"session": "s"}, {"page_size": -1}, {"page_token": "x"}):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await names(**fields)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("leases/unknown", grpc.StatusCode.NOT_FOUND),
        ("nonsense", grpc.StatusCode.INVALID_ARGUMENT),
        ("", grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_names_of_nothing(state: ServedState, name: str, code: grpc.StatusCode) -> None:
    """What does not exist is not found; what is no name is malformed."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await state.leases.GetLease(pb.GetLeaseRequest(name=name))

    assert refused.value.code() is code
