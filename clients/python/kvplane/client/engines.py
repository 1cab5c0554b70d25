"""Engines, as operators see them."""

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from kvplane.api.engine.v1 import engine_pb2, engine_pb2_grpc
from kvplane.client.calls import Removed, ServiceCalls, Synced, Upserted, WatchEvent
from kvplane.client.clock import Clock
from kvplane.client.names import engine_name
from kvplane.client.replicas import Replicas

if TYPE_CHECKING:
    import grpc.aio

    from kvplane.api.engine.v1.engine_pb2_grpc import EngineServiceAsyncStub

Engine = engine_pb2.Engine


class Engines:
    """EngineService without what engines themselves call; that is `EngineLink`.

    Engines are given by name, `engines/decode-0`, or id, `decode-0`. Every method raises
    KvplaneClientError.
    """

    def __init__(self, replicas: Replicas, *, timeout: float, clock: Clock) -> None:
        self._calls = ServiceCalls(replicas=replicas, stub=_stub, timeout=timeout, clock=clock)

    async def get(self, engine: str) -> Engine:
        """Gets one engine. Raises NotFoundError if there is none."""
        request = engine_pb2.GetEngineRequest(name=engine_name(engine))
        return (await self._calls.call(lambda stub: stub.GetEngine, request, repeat=True)).engine

    def list(
        self,
        *,
        role: engine_pb2.Role.ValueType = engine_pb2.ROLE_UNSPECIFIED,
        model: str = "",
        page_size: int = 0,
    ) -> AsyncGenerator[Engine, None]:
        """Iterates over the engines by name, only those of a role or model if given."""
        request = engine_pb2.ListEnginesRequest(role=role, model=model, page_size=page_size)
        return self._calls.pages(lambda stub: stub.ListEngines, request, lambda page: page.engines)

    async def drain(self, engine: str) -> Engine:
        """Stops new turns on an engine; its leases stay readable. Idempotent."""
        request = engine_pb2.DrainEngineRequest(name=engine_name(engine))
        return (await self._calls.call(lambda stub: stub.DrainEngine, request, repeat=True)).engine

    async def resume(self, engine: str) -> Engine:
        """Lets a draining engine take turns again. Idempotent."""
        request = engine_pb2.ResumeEngineRequest(name=engine_name(engine))
        return (await self._calls.call(lambda stub: stub.ResumeEngine, request, repeat=True)).engine

    async def deregister(self, engine: str, *, epoch: int) -> None:
        """Ends a registration; its leases end as ENGINE_LOST. Idempotent.

        Raises FencedError if `epoch` is not that of the current registration. An engine that
        still runs registers again at its next heartbeat.
        """
        request = engine_pb2.DeregisterEngineRequest(name=engine_name(engine), epoch=epoch)
        await self._calls.call(lambda stub: stub.DeregisterEngine, request, repeat=True)

    def watch(self) -> AsyncGenerator[WatchEvent[Engine], None]:
        """The engines, then every change, over reconnects; see `ServiceCalls.watch`."""
        return self._calls.watch(
            lambda stub: stub.WatchEngines,
            lambda after: engine_pb2.WatchEnginesRequest(after_revision=after),
            _event,
        )


def _event(message: engine_pb2.WatchEnginesResponse) -> WatchEvent[Engine] | None:
    match message.WhichOneof("event"):
        case "upserted":
            return Upserted(message.upserted, message.revision)
        case "removed_name":
            return Removed(message.removed_name, None, message.revision)
        case "synced":
            return Synced(message.revision)
        case _:
            return None


def _stub(channel: "grpc.aio.Channel") -> "EngineServiceAsyncStub":
    return engine_pb2_grpc.EngineServiceStub(channel)
