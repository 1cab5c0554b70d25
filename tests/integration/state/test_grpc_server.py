"""The server around the services."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from kvplane.api.engine.v1 import engine_pb2
from kvplane.api.lease.v1 import lease_pb2, lease_pb2_grpc
from kvplane_services import errors
from kvplane_services.grpc_errors import status_of
from kvplane_services.grpc_server import GrpcServer, GrpcServerConfig
from tests.integration.state.rich_status import rich_status
from tests.integration.state.served_state import (
    ENGINES,
    EOF,
    LEASES,
    SESSIONS,
    ServedState,
    add_services,
    retention,
    serving,
)
from tests.support.state_plane import StatePlane

TLS = Path(__file__).parent / "tls"


@pytest.fixture
async def state() -> AsyncIterator[ServedState]:
    async with serving() as state:
        yield state


@pytest.mark.parametrize("service", ["", ENGINES, LEASES, SESSIONS])
async def test_health(state: ServedState, service: str) -> None:
    """Each service, and the server as a whole, says that it serves."""
    stub = health_pb2_grpc.HealthStub(state.channel)

    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))

    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_reflection(state: ServedState) -> None:
    """Tools can list the services."""
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(state.channel)
    call = stub.ServerReflectionInfo()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))

    answer = await asyncio.wait_for(call.read(), 10)
    await call.done_writing()

    names = {service.name for service in answer.list_services_response.service}
    assert {ENGINES, LEASES, SESSIONS, "grpc.health.v1.Health"} <= names


async def test_a_stop_finishes_streams_and_closes_them_ok(state: ServedState) -> None:
    """A frame in hand is answered; idle streams and watches end at once, not after the grace."""
    epoch = (await state.register()).engine.epoch
    beats = state.engines.HeartbeatEngine()
    frame = engine_pb2.HeartbeatEngineRequest(
        sequence=1, name="engines/d0", epoch=epoch, full_report=True
    )
    await beats.write(frame)
    assert (await asyncio.wait_for(beats.read(), 10)).sequence == 1
    watch = state.engines.WatchEngines(engine_pb2.WatchEnginesRequest())
    events = [await asyncio.wait_for(watch.read(), 10) for _ in range(2)]

    await asyncio.wait_for(state.server.stop(), 4)

    assert events[1].synced
    assert await beats.read() is EOF
    assert await watch.read() is EOF
    codes = [await beats.code(), await watch.code()]
    assert codes == [grpc.StatusCode.OK, grpc.StatusCode.OK]


class SlowSequence:
    """Numbers that wait until they are let go."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.go = asyncio.Event()

    async def next(self, count: int = 1) -> int:
        self.asked.set()
        await self.go.wait()
        return 1


async def test_a_stop_finishes_the_frame_in_hand() -> None:
    """A frame that is being worked on when the server stops is answered before its stream ends."""
    tokens = SlowSequence()
    async with serving(StatePlane(tokens=tokens)) as state:
        epoch = (await state.register()).engine.epoch
        call = state.engines.HeartbeatEngine()
        await call.write(
            engine_pb2.HeartbeatEngineRequest(
                sequence=5,
                name="engines/d0",
                epoch=epoch,
                full_report=True,
                retentions=[retention()],
            )
        )
        await asyncio.wait_for(tokens.asked.wait(), 10)
        stop = asyncio.ensure_future(state.server.stop())
        await state.plane.settle()
        tokens.go.set()

        answer = await asyncio.wait_for(call.read(), 10)
        end = await asyncio.wait_for(call.read(), 10)
        await asyncio.wait_for(stop, 4)

    assert (answer.sequence, len(answer.directives)) == (5, 1)
    assert end is EOF


async def test_a_stop_is_told_to_health_watchers() -> None:
    """Whoever watches its health hears that it stops serving, and is cut after the grace."""
    server = GrpcServer(config=GrpcServerConfig(stop_grace=0.2))
    add_services(server, StatePlane())
    port = await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service=LEASES)
        )
        serving_first = await asyncio.wait_for(watch.read(), 10)
        stop = asyncio.ensure_future(server.stop())
        then = await asyncio.wait_for(watch.read(), 10)
        await asyncio.wait_for(stop, 10)

    assert serving_first.status == health_pb2.HealthCheckResponse.SERVING
    assert then.status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_stopping_twice(state: ServedState) -> None:
    """A second stop does nothing."""
    await state.server.stop()
    await state.server.stop()


async def test_a_taken_port() -> None:
    """Two servers never share a port by accident."""
    first = GrpcServer()
    port = await first.start()
    second = GrpcServer(config=GrpcServerConfig(address=f"127.0.0.1:{port}"))

    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}"):
        await second.start()

    await first.stop()
    await second.stop()


async def test_it_serves_until_cancelled() -> None:
    """Its loop stops the server when its task is cancelled."""
    plane, server = StatePlane(), GrpcServer(config=GrpcServerConfig(stop_grace=1.0))
    add_services(server, plane)
    port = await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = lease_pb2_grpc.LeaseServiceStub(channel)
        running = asyncio.ensure_future(server.run())
        await stub.ListLeases(lease_pb2.ListLeasesRequest())

        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await lease_pb2_grpc.LeaseServiceStub(channel).ListLeases(lease_pb2.ListLeasesRequest())


async def test_tls() -> None:
    """With credentials the server speaks TLS, and nothing in the clear."""
    certificate = (TLS / "cert.pem").read_bytes()
    server = GrpcServer(
        credentials=grpc.ssl_server_credentials([((TLS / "key.pem").read_bytes(), certificate)])
    )
    add_services(server, StatePlane())
    port = await server.start()

    trusted = grpc.ssl_channel_credentials(root_certificates=certificate)
    async with grpc.aio.secure_channel(f"localhost:{port}", trusted) as channel:
        answer = await lease_pb2_grpc.LeaseServiceStub(channel).ListLeases(
            lease_pb2.ListLeasesRequest()
        )
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await lease_pb2_grpc.LeaseServiceStub(channel).ListLeases(lease_pb2.ListLeasesRequest())
    await server.stop()

    assert list(answer.leases) == []
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def drained(call: Any) -> list[Any]:
    """Everything that a stream sends."""
    return [message async for message in call]


class BrokenLeases:
    """Has a bug in every kind of method."""

    GrantLease = BatchRenewLeases = ReleaseLease = ConsumeLease = ListLeases = None

    async def GetLease(self, request: Any, context: Any) -> Any:
        raise KeyError("secret of the implementation")

    async def WatchLeases(self, request: Any, context: Any) -> Any:
        yield lease_pb2.WatchLeasesResponse(revision=1, synced=True)
        raise KeyError("secret of the implementation")

    async def RenewLeases(self, request_iterator: Any, context: Any) -> Any:
        async for request in request_iterator:
            yield lease_pb2.RenewLeasesResponse(sequence=request.sequence)
            raise KeyError("secret of the implementation")


@pytest.mark.parametrize("kind", ["unary", "watch", "stream"])
async def test_bugs_are_logged_once_with_the_id_that_the_caller_gets(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """INTERNAL with an id, nothing of the inside, and one record with the trace."""
    server = GrpcServer()
    server.add(
        lease_pb2_grpc.add_LeaseServiceServicer_to_server, cast("Any", BrokenLeases()), LEASES
    )
    port = await server.start()
    caplog.set_level(logging.ERROR)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = lease_pb2_grpc.LeaseServiceStub(channel)
        calls: dict[str, Callable[[], Any]] = {
            "unary": lambda: stub.GetLease(lease_pb2.GetLeaseRequest()),
            "watch": lambda: drained(stub.WatchLeases(lease_pb2.WatchLeasesRequest())),
            "stream": lambda: drained(
                stub.RenewLeases(iter([lease_pb2.RenewLeasesRequest(sequence=1)]))
            ),
        }
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await calls[kind]()
    await server.stop()

    status = rich_status(failed.value)
    found = re.fullmatch(r"internal error ([0-9a-f]{16})", status.message)
    assert status.code is grpc.StatusCode.INTERNAL
    assert found is not None
    assert (status.reason, status.metadata) == ("INTERNAL", {"error_id": found[1]})
    records = [record for record in caplog.records if found[1] in record.getMessage()]
    assert len(records) == len(caplog.records) == 1
    assert records[0].exc_info is not None


async def test_unknown_methods(state: ServedState) -> None:
    """A method that does not exist is UNIMPLEMENTED, as gRPC says."""
    channel: Any = state.channel
    call = channel.unary_unary("/kvplane.api.lease.v1.LeaseService/Nonsense")

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(b"")

    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def kinds(root: type[errors.KvplaneError]) -> list[type[errors.KvplaneError]]:
    return [root, *(each for child in root.__subclasses__() for each in kinds(child))]


def test_every_domain_error_has_a_status() -> None:
    """No error falls through the table, and each keeps its reason and facts."""
    codes: dict[str, int] = {}
    for kind in kinds(errors.KvplaneError):
        wants_retry = issubclass(kind, errors.Saturated | errors.Unavailable)
        facts: dict[str, Any] = {"fact": "x"} | ({"retry_after": 1.5} if wants_retry else {})
        error = kind("what to do", **facts)
        status = status_of(error)
        codes[kind.__name__] = status.code
        assert status.message == "what to do"
        assert len(status.details) == (2 if wants_retry else 1)

    internal = grpc.StatusCode.INTERNAL.value[0]
    assert [name for name, code in codes.items() if code == internal] == ["KvplaneError"]


@pytest.mark.parametrize(
    "values",
    [
        {"max_message_bytes": 0},
        {"keepalive": 0.0},
        {"keepalive_timeout": -1.0},
        {"stop_grace": -1.0},
    ],
)
def test_impossible_configurations(values: dict[str, Any]) -> None:
    """Durations and sizes are positive."""
    with pytest.raises(ValueError, match="must"):
        GrpcServerConfig(**values)
