"""The plane's state behind a real gRPC server on loopback, on virtual time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from kvplane.api.engine.v1 import engine_pb2, engine_pb2_grpc
from kvplane.api.lease.v1 import lease_pb2, lease_pb2_grpc
from kvplane.api.session.v1 import session_pb2, session_pb2_grpc
from kvplane_services.durations import duration
from kvplane_services.engine.model import Engine
from kvplane_services.engine.servicer import EngineServicer
from kvplane_services.engine.wire import engine_to_wire
from kvplane_services.grpc_server import GrpcServer
from kvplane_services.lease.servicer import LeaseServicer
from kvplane_services.session.servicer import SessionServicer
from tests.support.state_plane import StatePlane
from tests.support.state_values import engine_of

ENGINES = engine_pb2.DESCRIPTOR.services_by_name["EngineService"].full_name
LEASES = lease_pb2.DESCRIPTOR.services_by_name["LeaseService"].full_name
SESSIONS = session_pb2.DESCRIPTOR.services_by_name["SessionService"].full_name

# What a read gives at the end of a stream; grpc-stubs does not name it.
EOF: Any = vars(grpc.aio)["EOF"]


class ServedState:
    """Stubs for the three services, and the state behind them."""

    def __init__(self, plane: StatePlane, server: GrpcServer, channel: grpc.aio.Channel) -> None:
        self.plane = plane
        self.server = server
        self.channel = channel
        # grpc-stubs does not know how asyncio's streams are read and written.
        self.engines: Any = engine_pb2_grpc.EngineServiceStub(channel)
        self.leases: Any = lease_pb2_grpc.LeaseServiceStub(channel)
        self.sessions: Any = session_pb2_grpc.SessionServiceStub(channel)

    async def register(self, engine: Engine | None = None) -> engine_pb2.RegisterEngineResponse:
        """Registers an engine."""
        engine = engine or engine_of()
        answer: engine_pb2.RegisterEngineResponse = await self.engines.RegisterEngine(
            engine_pb2.RegisterEngineRequest(
                engine_id=engine.engine_id, engine=engine_to_wire(engine), ttl=duration(300.0)
            )
        )
        return answer


def add_services(server: GrpcServer, plane: StatePlane) -> None:
    """Adds the three services to a server."""
    server.add(
        engine_pb2_grpc.add_EngineServiceServicer_to_server,
        EngineServicer(directory=plane.directory, manager=plane.manager),
        ENGINES,
    )
    server.add(
        lease_pb2_grpc.add_LeaseServiceServicer_to_server,
        LeaseServicer(manager=plane.manager),
        LEASES,
    )
    server.add(
        session_pb2_grpc.add_SessionServiceServicer_to_server,
        SessionServicer(registry=plane.registry),
        SESSIONS,
    )


@asynccontextmanager
async def serving(plane: StatePlane | None = None) -> AsyncIterator[ServedState]:
    """Serves until left."""
    plane = plane or StatePlane()
    server = GrpcServer()
    add_services(server, plane)
    port = await server.start()
    try:
        async with (
            plane.running(),
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            yield ServedState(plane, server, channel)
    finally:
        await server.stop()


def retention(
    retention_id: str = "r1", session_id: str = "s", **fields: object
) -> engine_pb2.Retention:
    """A retention as an engine reports it first."""
    message = engine_pb2.Retention(
        retention_id=retention_id,
        session_key=session_pb2.SessionKey(tenant="t", model="m", session_id=session_id),
        tokens=64,
        blocks=4,
        handle=lease_pb2.Handle(kv_transfer_params=b"{}"),
        remaining=duration(30.0),
    )
    message.MergeFrom(engine_pb2.Retention(**fields))  # type: ignore[arg-type]
    return message
