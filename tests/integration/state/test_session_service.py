"""SessionService over a socket."""

import asyncio
import datetime as dt
import uuid
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from kvplane.api.lease.v1 import lease_pb2
from kvplane.api.session.v1 import session_pb2 as pb
from kvplane_services.durations import duration
from kvplane_services.engine.model import Engine
from kvplane_services.lease.model import Lease, LeaseState
from tests.integration.state.rich_status import rich_status
from tests.integration.state.served_state import ServedState, serving
from tests.support.state_values import engine_of, full, held, key_of, retention_of

NAME = key_of().name
KEY = pb.SessionKey(tenant="t", model="m", session_id="s")


@pytest.fixture
async def state() -> AsyncIterator[ServedState]:
    async with serving() as state:
        yield state


async def after_a_turn(state: ServedState) -> tuple[Engine, Lease]:
    """A session with a live lease."""
    engine = await state.plane.register(engine_of(), ttl=300.0)
    lease = await state.plane.held_lease(engine, full(retention_of()))
    await state.plane.settle()
    return engine, lease


async def test_a_session_travels_as_it_is(state: ServedState) -> None:
    """Every field of a session reaches its reader."""
    engine, lease = await after_a_turn(state)
    session = await state.plane.registry.update(key_of(), keep_for=60.0)

    got = (await state.sessions.GetSession(pb.GetSessionRequest(name=NAME))).session

    assert got.name == NAME
    assert got.key == KEY
    assert got.state == pb.Session.STATE_RETAINED
    assert (got.lease, got.engine) == (lease.name, engine.name)
    (turn,) = got.turns
    assert got.turn_count == 1
    assert (turn.decision_id, turn.lease, turn.engine) == (
        lease.decision_id,
        lease.name,
        engine.name,
    )
    assert (turn.tokens, turn.end_reason) == (lease.tokens, "")
    assert got.hints == pb.SessionHints(keep_for=duration(60.0))
    assert got.etag == session.etag
    assert (turn.finish_time.ToDatetime(dt.UTC), got.create_time.ToDatetime(dt.UTC)) == (
        session.turns[0].finish_time,
        session.create_time,
    )
    assert (got.update_time.ToDatetime(dt.UTC), got.expire_time.ToDatetime(dt.UTC)) == (
        session.update_time,
        session.expire_time,
    )


async def test_creating(state: ServedState) -> None:
    """A key is taken once; a repeated request id gets the first answer."""
    request = pb.CreateSessionRequest(
        session=pb.Session(key=KEY, hints=pb.SessionHints(keep_for=duration(60.0))),
        ttl=duration(1.0),
        request_id=str(uuid.uuid4()),
    )
    first = await state.sessions.CreateSession(request)

    assert first == await state.sessions.CreateSession(request)
    assert (
        first.session.name,
        first.ttl.seconds,
        first.session.hints.keep_for.seconds,
    ) == (NAME, 60, 60)
    with pytest.raises(grpc.aio.AioRpcError) as taken:
        await state.sessions.CreateSession(pb.CreateSessionRequest(session=pb.Session(key=KEY)))
    assert rich_status(taken.value).code is grpc.StatusCode.ALREADY_EXISTS


async def test_touching_and_ending(state: ServedState) -> None:
    """A touch claims the lease for the granted time; an end releases it."""
    _, lease = await after_a_turn(state)

    touched = await state.sessions.TouchSession(
        pb.TouchSessionRequest(name=NAME, keep_for=duration(1e6))
    )
    assert touched.keep_for.seconds == 3600
    assert [claim.holder for claim in state.plane.manager.get(lease.name).claims] == [NAME]

    ended = await state.sessions.EndSession(pb.EndSessionRequest(name=NAME))
    assert ended.session.state == pb.Session.STATE_ENDED
    assert state.plane.manager.get(lease.name).state is LeaseState.RELEASING


async def test_updating_by_mask_and_etag(state: ServedState) -> None:
    """Only named hints change; a stale etag is ABORTED, and the fresh one goes through."""
    _, lease = await after_a_turn(state)
    etag = (await state.sessions.GetSession(pb.GetSessionRequest(name=NAME))).session.etag

    async def update(etag: str, *paths: str, **hints: Any) -> pb.Session:
        request = pb.UpdateSessionRequest(
            session=pb.Session(name=NAME, etag=etag, hints=pb.SessionHints(**hints))
        )
        request.update_mask.paths.extend(paths)
        session: pb.Session = (await state.sessions.UpdateSession(request)).session
        return session

    kept = await update(etag, "hints.keep_for", keep_for=duration(60.0), final_turn=True)
    assert (kept.hints.keep_for.seconds, kept.hints.final_turn) == (60, False)
    assert state.plane.manager.get(lease.name).claims

    with pytest.raises(grpc.aio.AioRpcError) as stale:
        await update(etag, "hints", final_turn=True)
    assert (
        rich_status(stale.value).code,
        rich_status(stale.value).reason,
    ) == (grpc.StatusCode.ABORTED, "CONFLICT")
    final = await update(kept.etag, "hints", final_turn=True)
    assert (final.hints.keep_for.seconds, final.hints.final_turn) == (0, True)
    assert not state.plane.manager.get(lease.name).claims


async def test_a_last_turn_is_kept_for_a_session_that_comes_back(state: ServedState) -> None:
    """What it left ranks last and is not released; the next turn's claim takes the hint back."""
    engine, lease = await after_a_turn(state)
    request = pb.UpdateSessionRequest(
        session=pb.Session(name=NAME, hints=pb.SessionHints(final_turn=True))
    )
    request.update_mask.paths.append("hints.final_turn")

    async def worth() -> float:
        await state.plane.clock.advance(11)
        (directive,) = (await state.plane.report(engine, held())).directives
        return directive.worth

    before = await worth()
    await state.sessions.UpdateSession(request)
    told = await worth()
    claim = lease_pb2.BatchRenewLeasesRequest(
        holder="routers/r",
        renewals=[lease_pb2.LeaseRenewal(name=lease.name, fencing_token=lease.fencing_token)],
    )
    claimed = await state.leases.BatchRenewLeases(claim)

    assert claimed.results[0].outcome == lease_pb2.RENEWAL_OUTCOME_RENEWED
    assert told < before / 5 < await worth()
    assert state.plane.manager.get(lease.name).state is LeaseState.ACTIVE
    assert state.plane.registry.get(key_of()).lease == lease.name


@pytest.mark.parametrize("paths", [[], ["turns"], ["hints", "lease"]])
async def test_masks_that_name_nothing_to_update(state: ServedState, paths: list[str]) -> None:
    """INVALID_ARGUMENT says what can be updated, and nothing was."""
    await after_a_turn(state)
    request = pb.UpdateSessionRequest(
        session=pb.Session(name=NAME, hints=pb.SessionHints(final_turn=True))
    )
    request.update_mask.paths.extend(paths)

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await state.sessions.UpdateSession(request)

    status = rich_status(refused.value)
    assert (status.code, status.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ("update_mask",))
    assert "hints.final_turn" in status.message
    assert not state.plane.registry.get(key_of()).hints.final_turn


async def test_deleting(state: ServedState) -> None:
    """A deleted session is not found; deleting it again succeeds."""
    await after_a_turn(state)
    for _ in range(2):
        await state.sessions.DeleteSession(pb.DeleteSessionRequest(name=NAME))

    with pytest.raises(grpc.aio.AioRpcError) as missing:
        await state.sessions.GetSession(pb.GetSessionRequest(name=NAME))
    assert rich_status(missing.value).code is grpc.StatusCode.NOT_FOUND


async def test_listing_and_watching(state: ServedState) -> None:
    """A listing's revision starts a watch that tells of what follows."""
    await after_a_turn(state)
    listed = await state.sessions.ListSessions(
        pb.ListSessionsRequest(tenant="t", model="m", engine="engines/d0")
    )
    other = await state.sessions.ListSessions(pb.ListSessionsRequest(tenant="u"))
    watch = state.sessions.WatchSessions(pb.WatchSessionsRequest(after_revision=listed.revision))
    assert (await asyncio.wait_for(watch.read(), 10)).synced
    await state.sessions.DeleteSession(pb.DeleteSessionRequest(name=NAME))

    removed = await asyncio.wait_for(watch.read(), 10)

    assert [session.name for session in listed.sessions] == [NAME]
    assert list(other.sessions) == []
    assert removed.removed_name == NAME


async def test_watching_from_the_start(state: ServedState) -> None:
    """The current sessions come first, with the etag that guards a write."""
    await after_a_turn(state)
    watch = state.sessions.WatchSessions(pb.WatchSessionsRequest())

    first = await asyncio.wait_for(watch.read(), 10)

    got = (await state.sessions.GetSession(pb.GetSessionRequest(name=NAME))).session
    assert got.etag == first.upserted.etag
    assert (await asyncio.wait_for(watch.read(), 10)).synced


@pytest.mark.parametrize("name", ["", "s", "sessions/t:m:s", "sessions/:m::s", "leases/t:m::s"])
async def test_names_that_are_none(state: ServedState, name: str) -> None:
    """Every RPC that takes a name refuses what is none."""
    calls = (
        state.sessions.GetSession(pb.GetSessionRequest(name=name)),
        state.sessions.TouchSession(pb.TouchSessionRequest(name=name)),
        state.sessions.EndSession(pb.EndSessionRequest(name=name)),
        state.sessions.DeleteSession(pb.DeleteSessionRequest(name=name)),
    )
    for call in calls:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
