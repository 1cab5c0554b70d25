"""The client against `kvplane up`."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kvplane.api.engine.v1 import engine_pb2
from kvplane.api.lease.v1 import lease_pb2
from kvplane.api.router.v1 import router_pb2
from kvplane.api.session.v1 import session_pb2
from kvplane.client import (
    EndReason,
    FencedError,
    InvalidRequestError,
    KeptLease,
    LeaseKeeper,
    NotFoundError,
    Plane,
    Removed,
    Reset,
    SessionKey,
    Synced,
    SyncPlane,
    UnavailableError,
    Upserted,
)
from tests.support.linked_engine import LinkedEngine, eventually, linked_engine
from tests.support.plane_process import PlaneProcess


@pytest.fixture
async def plane(process: PlaneProcess) -> AsyncIterator[Plane]:
    async with Plane(process.target) as plane:
        yield plane


async def leases_of(plane: Plane) -> list[lease_pb2.Lease]:
    return [one async for one in plane.leases.list()]


async def test_reported_retention_becomes_lease_and_session(
    process: PlaneProcess, plane: Plane, key: SessionKey
) -> None:
    """What an engine reports is a lease of its session, until the engine says that it ended."""
    async with linked_engine("decode-0", process.target) as engine:
        engine.retain("r1", key)
        await eventually(lambda: has_leases(plane, 1))
        (lease,) = await leases_of(plane)
        assert lease.engine == "engines/decode-0"
        assert lease.session == key.name
        assert (lease.tokens, lease.blocks) == (256, 16)
        assert lease.handle.digests.tokens == 256
        await eventually(lambda: is_retained(plane, key))
        session = await plane.sessions.get(key)
        assert (session.lease, session.engine) == (lease.name, "engines/decode-0")
        assert (await plane.leases.get(lease.name.removeprefix("leases/"))).name == lease.name
        engine.end("r1", EndReason.RECLAIMED)
        engine.link.notify()
        await eventually(lambda: has_leases(plane, 0))
        ended = await plane.leases.get(lease.name)
        assert ended.end_reason == lease_pb2.END_REASON_RECLAIMED


async def test_release_reaches_the_engine(
    process: PlaneProcess, plane: Plane, key: SessionKey
) -> None:
    """An operator's release is a directive at the engine; a stale token is refused."""
    async with linked_engine("decode-0", process.target) as engine:
        engine.retain("r1", key)
        await eventually(lambda: has_leases(plane, 1))
        (lease,) = await leases_of(plane)
        with pytest.raises(FencedError) as caught:
            await plane.leases.release(lease.name, fencing_token=lease.fencing_token + 1)
        assert caught.value.reason == "LEASE_FENCED"
        await plane.leases.release(lease.name, fencing_token=lease.fencing_token)
        await eventually(lambda: not engine.held)
        await eventually(lambda: has_leases(plane, 0))


async def test_engine_is_drained_and_resumed(
    process: PlaneProcess, plane: Plane, key: SessionKey
) -> None:
    """Draining is idempotent, and the engine hears of it with its next heartbeat."""
    async with linked_engine("decode-0", process.target) as engine:
        for _ in range(2):
            drained = await plane.engines.drain("decode-0")
            assert drained.state == engine_pb2.Engine.STATE_DRAINING
        engine.link.notify()
        await eventually(lambda: engine.link.drain_requested)
        resumed = await plane.engines.resume("engines/decode-0")
        assert resumed.state == engine_pb2.Engine.STATE_ACTIVE
    with pytest.raises(NotFoundError):
        await plane.engines.get("decode-0")


async def test_deregistered_engine_comes_back(
    process: PlaneProcess, plane: Plane, key: SessionKey
) -> None:
    """A deregistered engine registers again, with a larger epoch and its leases."""
    async with linked_engine("decode-0", process.target) as engine:
        engine.retain("r1", key)
        await eventually(lambda: has_leases(plane, 1))
        first = await plane.engines.get("decode-0")
        with pytest.raises(FencedError):
            await plane.engines.deregister("decode-0", epoch=first.epoch - 1)
        await plane.engines.deregister("decode-0", epoch=first.epoch)
        engine.link.notify()
        await eventually(lambda: has_leases(plane, 1))
        assert (await plane.engines.get("decode-0")).epoch > first.epoch


async def test_successor_fences_its_predecessor(process: PlaneProcess) -> None:
    """Of two processes that claim one engine the older stops, and says so."""
    older = LinkedEngine("decode-0", process.target)
    running = asyncio.ensure_future(older.link.run())
    await eventually(lambda: older.link.connected)
    async with linked_engine("decode-0", process.target) as newer:
        older.link.notify()
        with pytest.raises(FencedError):
            await running
        await older.link.aclose()
        assert newer.link.connected


async def test_holder_keeps_and_loses(process: PlaneProcess, plane: Plane, key: SessionKey) -> None:
    """A holder's claim is seen on the lease, is dropped with the keeper, and its loss is told."""
    lost: list[KeptLease] = []
    async with linked_engine("decode-0", process.target) as engine:
        engine.retain("r1", key)
        await eventually(lambda: has_leases(plane, 1))
        (lease,) = await leases_of(plane)
        keeper = LeaseKeeper(target=process.target, holder="agents/7", on_lost=lost.append)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(keeper.run())
            kept = keeper.keep(lease.name, lease.fencing_token)
            await eventually(lambda: is_claimed(plane, lease.name, by="agents/7"))
            keeper.drop(kept)
            await eventually(lambda: is_claimed(plane, lease.name, by=""))
            again = keeper.keep(lease.name, lease.fencing_token)
            stale = keeper.keep("no-such-lease", 1)
            await eventually(lambda: lost == [stale])
            assert keeper.kept == (again,)
            await keeper.aclose()
        await eventually(lambda: is_claimed(plane, lease.name, by=""))


async def test_sessions_from_creation_to_end(
    process: PlaneProcess, plane: Plane, key: SessionKey
) -> None:
    """A session is created, hinted at, touched, ended and forgotten."""
    created = await plane.sessions.create(key, keep_for=60)
    assert created.name == key.name
    assert created.hints.keep_for.seconds == 60
    updated = await plane.sessions.update_hints(
        key, session_pb2.SessionHints(final_turn=True), etag=created.etag
    )
    assert updated.hints.final_turn
    assert (await plane.sessions.touch(key, keep_for=30)).keep_for.ToNanoseconds() == 0
    assert (await plane.sessions.end(key)).state == session_pb2.Session.STATE_ENDED
    assert [one.name async for one in plane.sessions.list(model=key.model)] == [key.name]
    await plane.sessions.delete(key)
    await plane.sessions.delete(key)
    with pytest.raises(NotFoundError):
        await plane.sessions.get(key)


async def test_touch_keeps_a_live_lease(
    process: PlaneProcess, plane: Plane, key: SessionKey
) -> None:
    """A touched session's lease is granted time."""
    async with linked_engine("decode-0", process.target) as engine:
        engine.retain("r1", key)
        await eventually(lambda: is_retained(plane, key))
        assert (await plane.sessions.touch(key, keep_for=30)).keep_for.seconds > 0


async def test_lists_read_all_pages(process: PlaneProcess, plane: Plane, key: SessionKey) -> None:
    """More resources than a page holds are all listed, once each."""
    keys = [SessionKey("default", key.model, "", f"s{number:02}") for number in range(7)]
    for one in keys:
        await plane.sessions.create(one)
    found = [one.name async for one in plane.sessions.list(model=key.model, page_size=2)]
    assert found == [one.name for one in keys]


async def test_router_explains_decides_and_takes_reports(
    process: PlaneProcess, plane: Plane, key: SessionKey
) -> None:
    """With a prefill and a decode engine a turn is routed; without, the error says why."""
    subject = router_pb2.RouteSubject(
        session_key=session_pb2.SessionKey(**key._asdict()), prompt_tokens=512
    )
    with pytest.raises((UnavailableError, NotFoundError)) as caught:
        await plane.router.decide(subject)
    assert caught.value.reason
    assert (await plane.router.explain(subject)).failure
    async with (
        linked_engine("decode-0", process.target, model=key.model) as decode,
        linked_engine("prefill-0", process.target, model=key.model, role=engine_pb2.ROLE_PREFILL),
    ):
        decode.retain("r1", key, tokens=496)
        await eventually(lambda: can_route(plane, subject))
        assert key.model in await plane.router.models()
        explained = await plane.router.explain(subject)
        assert {one.engine for one in explained.candidates} == {
            "engines/decode-0",
            "engines/prefill-0",
        }
        decision = await plane.router.decide(subject)
        assert decision.decode.engine == "engines/decode-0"
        for leg in (router_pb2.LEG_KIND_PREFILL, router_pb2.LEG_KIND_DECODE):
            report = router_pb2.ReportRouteOutcomeRequest(
                decision_id=decision.decision_id,
                leg=leg,
                outcome=router_pb2.ROUTE_OUTCOME_SUCCEEDED,
            )
            await plane.router.report(report)
            await plane.router.report(report)


async def test_watch_survives_a_restart_of_the_plane(tmp_path: Path, key: SessionKey) -> None:
    """A watch goes on with the next plane: it starts over and sees what engines report again."""
    process = PlaneProcess(tmp_path)
    process.start()
    try:
        async with (
            Plane(process.target) as plane,
            linked_engine("decode-0", process.target) as engine,
            asyncio.timeout(40),
        ):
            engine.retain("r1", key)
            events = plane.leases.watch()
            seen = [await anext(events) for _ in range(2)]
            assert {type(one) for one in seen} == {Upserted, Synced}
            process.kill()
            process.start()
            while not isinstance(seen[-1], Upserted) or len(seen) == 2:
                seen.append(await anext(events))
            assert any(isinstance(one, Reset) for one in seen[2:])
            assert seen[-1].value.session == key.name
            engine.end("r1", EndReason.RECLAIMED)
            engine.link.notify()
            while not isinstance(seen[-1], Removed):
                seen.append(await anext(events))
            assert seen[-1].value is not None
            assert seen[-1].value.end_reason == lease_pb2.END_REASON_RECLAIMED
            await events.aclose()
        assert process.stop() == 0
    finally:
        process.kill()


async def test_many_events_reach_the_plane(
    process: PlaneProcess, plane: Plane, key: SessionKey
) -> None:
    """A thousand retentions that begin and end in bursts leave exactly what is held."""
    async with linked_engine("decode-0", process.target) as engine:
        for number in range(1000):
            engine.retain(f"r{number}", SessionKey("default", "m", "", f"s{number}"))
            if number % 3:
                engine.end(f"r{number}", EndReason.RECLAIMED)
            if number % 50 == 0:
                await asyncio.sleep(0)
        engine.link.notify()
        await eventually(lambda: has_leases(plane, 334))
        held = set(engine.held)
        assert {one.retention_id for one in await leases_of(plane)} == held


def test_scripts_need_no_event_loop(process: PlaneProcess) -> None:
    """The synchronous client lists, raises the same errors, and closes its thread."""
    with SyncPlane(process.target) as plane:
        assert list(plane.each(plane.engines.list())) == []
        with pytest.raises(NotFoundError):
            plane.run(plane.engines.get("nobody"))
        with pytest.raises(InvalidRequestError):
            plane.run(plane.sessions.get("sessions/broken"))
        for event in plane.each(plane.engines.watch()):
            assert isinstance(event, Synced)
            break
    plane.close()
    with pytest.raises(ValueError, match="host:port"):
        SyncPlane("nowhere")


async def test_absent_plane_is_unavailable() -> None:
    """A plane that is not there is an UnavailableError that names the address."""
    async with Plane("127.0.0.1:1", timeout=2.0) as plane:
        with pytest.raises(UnavailableError) as caught:
            await plane.engines.get("decode-0")
    assert caught.value.metadata["target"] == "127.0.0.1:1"
    assert caught.value.reason == ""


async def has_leases(plane: Plane, count: int) -> bool:
    return len(await leases_of(plane)) == count


async def is_retained(plane: Plane, key: SessionKey) -> bool:
    try:
        session = await plane.sessions.get(key)
    except NotFoundError:
        return False
    return session.state == session_pb2.Session.STATE_RETAINED


async def is_claimed(plane: Plane, lease: str, *, by: str) -> bool:
    holders = {one.holder for one in (await plane.leases.get(lease)).claims}
    return by in holders if by else "agents/7" not in holders


async def can_route(plane: Plane, subject: router_pb2.RouteSubject) -> bool:
    return not (await plane.router.explain(subject)).failure
