"""EngineService over a socket."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from kvplane.api.engine.v1 import engine_pb2 as pb
from kvplane.api.lease.v1 import lease_pb2
from kvplane_services.engine.model import Role
from kvplane_services.engine.registration import DirectoryConfig
from kvplane_services.engine.wire import engine_from_wire, engine_to_wire
from tests.integration.state.rich_status import rich_status
from tests.integration.state.served_state import EOF, ServedState, retention, serving
from tests.support.state_plane import StatePlane
from tests.support.state_values import engine_of


@pytest.fixture
async def state() -> AsyncIterator[ServedState]:
    async with serving() as state:
        yield state


async def drained(call: Any) -> list[Any]:
    """Everything that a stream sends."""
    messages = []
    while (message := await call.read()) is not EOF:
        messages.append(message)
    return messages


async def beat(call: Any, **fields: Any) -> pb.HeartbeatEngineResponse:
    await call.write(pb.HeartbeatEngineRequest(**fields))
    answer: pb.HeartbeatEngineResponse = await asyncio.wait_for(call.read(), 10)
    return answer


async def test_an_engine_is_registered_as_described(state: ServedState) -> None:
    """Every field travels there and back, and the answer tells the durations to keep."""
    described = engine_of(labels={"zone": "a"}, data_parallel_size=2, data_parallel_rank=1)

    answer = await state.register(described)
    got = (await state.engines.GetEngine(pb.GetEngineRequest(name="engines/d0"))).engine

    engine = engine_from_wire(got)
    assert answer.engine.epoch == engine.epoch
    assert (
        answer.ttl.seconds,
        answer.heartbeat_interval.seconds,
        answer.lease_ttl.seconds,
    ) == (300, 1, 30)
    for name in ("role", "endpoint", "models", "nixl", "layout", "build", "labels"):
        assert getattr(described, name) == getattr(engine, name)
    assert (engine.data_parallel_rank, engine.data_parallel_size) == (1, 2)


async def test_a_retried_registration(state: ServedState) -> None:
    """The same request id returns the first answer over the wire as well."""
    request = pb.RegisterEngineRequest(
        engine_id="d0", engine=engine_to_wire(engine_of()), request_id=str(uuid.uuid4())
    )

    assert await state.engines.RegisterEngine(request) == await state.engines.RegisterEngine(
        request
    )


async def test_a_misfit_is_told_what_to_change(state: ServedState) -> None:
    """FAILED_PRECONDITION with ENGINE_INCOMPATIBLE, the engine concerned, and a remedy."""
    engine = engine_to_wire(engine_of())
    engine.build.vllm_version = "0.21.0"

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await state.engines.RegisterEngine(pb.RegisterEngineRequest(engine_id="d0", engine=engine))

    status = rich_status(refused.value)
    assert status.code is grpc.StatusCode.FAILED_PRECONDITION
    assert (status.reason, status.domain) == ("ENGINE_INCOMPATIBLE", "kvplane")
    assert status.metadata == {"engine": "engines/d0"}
    assert "upgrade vLLM" in status.message


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"endpoint": "http://0.0.0.0:8000"}, "engine.endpoint"),
        ({"role": pb.ROLE_UNSPECIFIED}, "engine.role"),
        ({"role": 99}, "engine.role"),
        ({"models": []}, "engine.models"),
    ],
)
async def test_malformed_registrations(
    state: ServedState, change: dict[str, Any], field: str
) -> None:
    """INVALID_ARGUMENT names the field."""
    engine = engine_to_wire(engine_of())
    for name, value in change.items():
        if name == "models":
            del engine.models[:]
        else:
            setattr(engine, name, value)

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await state.engines.RegisterEngine(pb.RegisterEngineRequest(engine_id="d0", engine=engine))

    status = rich_status(refused.value)
    assert (grpc.StatusCode.INVALID_ARGUMENT, (field,)) == (status.code, status.fields)


async def test_an_empty_registration(state: ServedState) -> None:
    """A request without an id or an engine is malformed, and no bug of the server."""
    for request in (
        pb.RegisterEngineRequest(),
        pb.RegisterEngineRequest(engine=engine_to_wire(engine_of())),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await state.engines.RegisterEngine(request)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_heartbeats_carry_retentions_up_and_directives_down(state: ServedState) -> None:
    """Frames are answered in order under their own sequence; a retention gets its lease."""
    epoch = (await state.register()).engine.epoch
    call = state.engines.HeartbeatEngine()
    common: dict[str, Any] = {"name": "engines/d0", "epoch": epoch}

    first = await beat(call, sequence=7, full_report=True, **common)
    second = await beat(call, sequence=3, retentions=[retention()], **common)
    third = await beat(call, sequence=9, load=pb.EngineLoad(running_requests=2), **common)

    assert [answer.sequence for answer in (first, second, third)] == [7, 3, 9]
    assert {pb.HEARTBEAT_OUTCOME_RENEWED} == {each.outcome for each in (first, second, third)}
    (directive,) = second.directives
    assert directive.retention_id == "r1"
    assert directive.renew.seconds == 30
    assert directive.lease.startswith("leases/")
    assert not first.directives
    assert not third.directives
    assert (third.ttl.seconds, third.heartbeat_interval.seconds) == (300, 1)
    got = await state.engines.GetEngine(pb.GetEngineRequest(name="engines/d0"))
    assert got.engine.load.running_requests == 2


async def test_releases_and_ends_travel(state: ServedState) -> None:
    """A superseded retention is released by its reason, and its end is taken in."""
    epoch = (await state.register()).engine.epoch
    call = state.engines.HeartbeatEngine()
    common: dict[str, Any] = {"name": "engines/d0", "epoch": epoch}
    first = await beat(call, full_report=True, retentions=[retention("r1")], **common)
    second = await beat(call, retentions=[retention("r2")], **common)
    end = pb.RetentionEnd(retention_id="r1", reason=lease_pb2.END_REASON_RELEASED)
    read = pb.RetentionRead(retention_id="r2", reads=4)
    await beat(call, ended=[end], reads=[read], **common)

    releases = [each.release for each in second.directives if each.HasField("release")]
    assert releases == [lease_pb2.END_REASON_SUPERSEDED]
    old = await state.leases.GetLease(lease_pb2.GetLeaseRequest(name=first.directives[0].lease))
    assert old.lease.end_reason == lease_pb2.END_REASON_SUPERSEDED
    listed = (await state.leases.ListLeases(lease_pb2.ListLeasesRequest())).leases
    assert [(lease.retention_id, lease.reads) for lease in listed] == [("r2", 4)]


async def test_a_stream_begins_with_a_full_report(state: ServedState) -> None:
    """A first frame that is none is answered so, also when the plane knows the engine."""
    epoch = (await state.register()).engine.epoch
    common: dict[str, Any] = {"name": "engines/d0", "epoch": epoch}
    call = state.engines.HeartbeatEngine()
    await beat(call, full_report=True, **common)
    await call.done_writing()

    again = state.engines.HeartbeatEngine()
    outcomes = [
        (await beat(again, **common)).outcome,
        (await beat(again, full_report=True, **common)).outcome,
    ]

    assert outcomes == [
        pb.HEARTBEAT_OUTCOME_FULL_REPORT_NEEDED,
        pb.HEARTBEAT_OUTCOME_RENEWED,
    ]


async def test_stale_epochs_and_unknown_engines_are_outcomes(state: ServedState) -> None:
    """The stream stays open for whatever the client does next."""
    epoch = (await state.register()).engine.epoch
    call = state.engines.HeartbeatEngine()

    outcomes = [
        (await beat(call, name="engines/d0", epoch=epoch - 1, full_report=True)).outcome,
        (await beat(call, name="engines/unknown", epoch=epoch, full_report=True)).outcome,
        (await beat(call, name="engines/d0", epoch=epoch, full_report=True)).outcome,
    ]

    assert outcomes == [
        pb.HEARTBEAT_OUTCOME_FENCED,
        pb.HEARTBEAT_OUTCOME_NOT_FOUND,
        pb.HEARTBEAT_OUTCOME_RENEWED,
    ]


async def test_nothing_of_a_fenced_frame_is_taken_in(state: ServedState) -> None:
    """A paused process cannot come back as its successor."""
    stale = (await state.register()).engine.epoch
    await state.register()
    call = state.engines.HeartbeatEngine()

    await beat(call, name="engines/d0", epoch=stale, full_report=True, retentions=[retention()])

    assert not (await state.leases.ListLeases(lease_pb2.ListLeasesRequest())).leases


@pytest.mark.parametrize(
    ("frame", "field"),
    [
        ({"name": "d0"}, "name"),
        ({"ended": [pb.RetentionEnd(retention_id="r1")]}, "ended[0].reason"),
    ],
)
async def test_a_malformed_frame_ends_the_stream(
    state: ServedState, frame: dict[str, Any], field: str
) -> None:
    """INVALID_ARGUMENT names the field."""
    epoch = (await state.register()).engine.epoch
    call = state.engines.HeartbeatEngine()

    fields: dict[str, Any] = {"name": "engines/d0", "epoch": epoch} | frame
    await call.write(pb.HeartbeatEngineRequest(**fields))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await asyncio.wait_for(call.read(), 10)

    status = rich_status(refused.value)
    assert (grpc.StatusCode.INVALID_ARGUMENT, (field,)) == (status.code, status.fields)


async def test_a_retention_without_a_name_ends_no_stream(state: ServedState) -> None:
    """It is to be released; what else the frame reports has its lease."""
    epoch = (await state.register()).engine.epoch
    call = state.engines.HeartbeatEngine()

    answer = await beat(
        call,
        name="engines/d0",
        epoch=epoch,
        full_report=True,
        retentions=[pb.Retention(), retention()],
    )

    unnamed, named = answer.directives
    assert (unnamed.retention_id, unnamed.release) == ("", lease_pb2.END_REASON_RELEASED)
    assert named.lease


async def test_a_broken_stream_ends_nothing(state: ServedState) -> None:
    """Neither the registration nor leases depend on a stream; the TTL does that."""
    epoch = (await state.register()).engine.epoch
    call = state.engines.HeartbeatEngine()
    common: dict[str, Any] = {"name": "engines/d0", "epoch": epoch}
    answer = await beat(call, full_report=True, retentions=[retention()], **common)

    call.cancel()
    await state.plane.clock.advance(10)

    got = await state.leases.GetLease(lease_pb2.GetLeaseRequest(name=answer.directives[0].lease))
    assert got.lease.state == lease_pb2.Lease.STATE_ACTIVE


async def test_operators_drain_and_resume(state: ServedState) -> None:
    """The wish shows in answers to heartbeats."""
    epoch = (await state.register()).engine.epoch
    call = state.engines.HeartbeatEngine()
    frame: dict[str, Any] = {"name": "engines/d0", "epoch": epoch, "full_report": True}

    drained = await state.engines.DrainEngine(pb.DrainEngineRequest(name="engines/d0"))
    asked = await beat(call, **frame)
    resumed = await state.engines.ResumeEngine(pb.ResumeEngineRequest(name="engines/d0"))

    assert drained.engine.state == pb.Engine.STATE_DRAINING
    assert asked.drain_requested
    assert resumed.engine.state == pb.Engine.STATE_ACTIVE
    assert not (await beat(call, **frame)).drain_requested


async def test_deregistering_ends_leases_at_once(state: ServedState) -> None:
    """When the call returns, the engine and its leases are gone; a stale epoch is refused."""
    epoch = (await state.register()).engine.epoch
    call = state.engines.HeartbeatEngine()
    frame: dict[str, Any] = {"name": "engines/d0", "epoch": epoch, "full_report": True}
    lease = (await beat(call, retentions=[retention()], **frame)).directives[0].lease

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await state.engines.DeregisterEngine(
            pb.DeregisterEngineRequest(name="engines/d0", epoch=epoch - 1)
        )
    assert rich_status(refused.value).reason == "EPOCH_STALE"
    await state.engines.DeregisterEngine(pb.DeregisterEngineRequest(name="engines/d0", epoch=epoch))

    got = await state.leases.GetLease(lease_pb2.GetLeaseRequest(name=lease))
    assert got.lease.end_reason == lease_pb2.END_REASON_ENGINE_LOST
    with pytest.raises(grpc.aio.AioRpcError) as missing:
        await state.engines.GetEngine(pb.GetEngineRequest(name="engines/d0"))
    assert missing.value.code() is grpc.StatusCode.NOT_FOUND


async def test_listing_in_pages(state: ServedState) -> None:
    """Pages cover everything, filters narrow, and the revision starts a watch."""
    for name in ("d0", "d1", "d2"):
        await state.register(engine_of(name))
    await state.register(engine_of("p0", role=Role.PREFILL))

    first = await state.engines.ListEngines(pb.ListEnginesRequest(page_size=2, role=pb.ROLE_DECODE))
    rest = await state.engines.ListEngines(
        pb.ListEnginesRequest(page_size=2, role=pb.ROLE_DECODE, page_token=first.next_page_token)
    )
    watch = state.engines.WatchEngines(pb.WatchEnginesRequest(after_revision=rest.revision))

    names = [engine.name for page in (first, rest) for engine in page.engines]
    assert names == ["engines/d0", "engines/d1", "engines/d2"]
    assert not rest.next_page_token
    assert (await asyncio.wait_for(watch.read(), 10)).synced


@pytest.mark.parametrize("size", [-1, 1001])
async def test_page_sizes_out_of_bounds(state: ServedState, size: int) -> None:
    """INVALID_ARGUMENT names the field."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await state.engines.ListEngines(pb.ListEnginesRequest(page_size=size))

    assert rich_status(refused.value).fields == ("page_size",)


async def test_watching(state: ServedState) -> None:
    """The current engines, synced, then changes; a resumed watch misses nothing."""
    await state.register()
    watch = state.engines.WatchEngines(pb.WatchEnginesRequest())

    async def event(call: Any) -> pb.WatchEnginesResponse:
        answer: pb.WatchEnginesResponse = await asyncio.wait_for(call.read(), 10)
        return answer

    assert (await event(watch)).upserted.name == "engines/d0"
    synced = await event(watch)
    assert synced.synced
    epoch = (await state.register(engine_of("d1"))).engine.epoch
    await state.engines.DeregisterEngine(pb.DeregisterEngineRequest(name="engines/d1", epoch=epoch))
    assert (await event(watch)).upserted.name == "engines/d1"
    ended = (await event(watch)).upserted
    assert (ended.name, ended.state) == ("engines/d1", pb.Engine.STATE_LOST)
    removed = await event(watch)
    assert removed.removed_name == "engines/d1"

    resumed = state.engines.WatchEngines(pb.WatchEnginesRequest(after_revision=synced.revision))
    seen = [await event(resumed) for _ in range(4)]
    kinds = [each.WhichOneof("event") for each in seen]
    assert kinds == ["upserted", "upserted", "removed_name", "synced"]
    assert removed.revision == seen[2].revision


async def test_watches_of_another_life_are_told(state: ServedState) -> None:
    """OUT_OF_RANGE with WATCH_COMPACTED: list again."""
    watch = state.engines.WatchEngines(pb.WatchEnginesRequest(after_revision=1))

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await asyncio.wait_for(watch.read(), 10)

    status = rich_status(refused.value)
    assert (status.code, status.reason) == (grpc.StatusCode.OUT_OF_RANGE, "WATCH_COMPACTED")


async def test_a_reader_that_does_not_read_is_cut() -> None:
    """RESOURCE_EXHAUSTED, while others go on; nothing is buffered without bound."""
    plane = StatePlane(backlog=64, directory=DirectoryConfig(load_interval=0))
    async with serving(plane) as state:
        labels = {str(number): "x" * 256 for number in range(64)}
        epoch = (await state.register(engine_of(labels=labels))).engine.epoch
        watch = state.engines.WatchEngines(pb.WatchEnginesRequest())
        assert (await asyncio.wait_for(watch.read(), 10)).upserted.name == "engines/d0"
        call = state.engines.HeartbeatEngine()
        frame: dict[str, Any] = {"name": "engines/d0", "epoch": epoch, "full_report": True}
        for running in range(2000):
            await beat(call, load=pb.EngineLoad(running_requests=running), **frame)

        with pytest.raises(grpc.aio.AioRpcError) as cut:
            await asyncio.wait_for(drained(watch), 20)

    status = rich_status(cut.value)
    assert status.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert status.retry_after is not None
    assert status.retry_after > 0
