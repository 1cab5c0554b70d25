"""Frame streams over gRPC, and the calls that go with them."""

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import grpc.aio

from kvplane.api.engine.v1 import engine_pb2, engine_pb2_grpc
from kvplane.api.lease.v1 import lease_pb2, lease_pb2_grpc
from kvplane.client.channel import Tls
from kvplane.client.errors import KvplaneClientError, error_of, from_rpc
from kvplane.client.frames import FrameStream, StreamEnded
from kvplane.client.replicas import Replicas

Request = TypeVar("Request")
Response = TypeVar("Response")


class GrpcFrameStream(Generic[Request, Response]):
    """A `FrameStream` on a bidirectional gRPC call."""

    def __init__(self, call: Any, response_type: type[Response]) -> None:
        self._call = call
        self._response_type = response_type

    async def exchange(self, frame: Request) -> Response:
        """See `FrameStream.exchange`."""
        try:
            await self._call.write(frame)
            answer = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error) from error
        except (asyncio.InvalidStateError, grpc.aio.UsageError) as error:
            # gRPC's way to say that the call ended before the write.
            raise await self._end() from error
        if not isinstance(answer, self._response_type):  # gRPC's end-of-stream mark.
            raise await self._end()
        return answer

    async def _end(self) -> KvplaneClientError:
        code: grpc.StatusCode = await self._call.code()
        if code is grpc.StatusCode.OK:
            return StreamEnded()
        return error_of(code.name, await self._call.details() or "the stream is over")

    def on_over(self, callback: Callable[[], None]) -> None:
        """See `FrameStream.on_over`."""
        self._call.add_done_callback(lambda _: callback())

    def cancel(self) -> None:
        """See `FrameStream.cancel`."""
        self._call.cancel()


class GrpcEngineTransport:
    """Implements `EngineTransport` over gRPC. Opens a channel at the first use."""

    def __init__(self, target: str, *, tls: Tls | None = None) -> None:
        self._replicas = Replicas(target, tls=tls)

    @property
    def address(self) -> str:
        """See `EngineTransport.address`."""
        return self._replicas.address

    async def register(
        self, request: engine_pb2.RegisterEngineRequest, *, seconds: float
    ) -> engine_pb2.RegisterEngineResponse:
        """See `EngineTransport.register`."""
        try:
            return await self._stub().RegisterEngine(request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error) from error

    async def deregister(
        self, request: engine_pb2.DeregisterEngineRequest, *, seconds: float
    ) -> None:
        """See `EngineTransport.deregister`."""
        try:
            await self._stub().DeregisterEngine(request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error) from error

    def open(
        self,
    ) -> FrameStream[engine_pb2.HeartbeatEngineRequest, engine_pb2.HeartbeatEngineResponse]:
        """See `EngineTransport.open`."""
        call = self._stub().HeartbeatEngine(None)
        return GrpcFrameStream(call, engine_pb2.HeartbeatEngineResponse)

    async def leave(self, *, silent: bool = False) -> None:
        """See `EngineTransport.leave`."""
        await self._replicas.leave(self._replicas.in_use(), silent=silent)

    async def aclose(self) -> None:
        """See `EngineTransport.aclose`."""
        await self._replicas.aclose()

    def _stub(self) -> "engine_pb2_grpc.EngineServiceAsyncStub":
        return self._replicas.in_use().stub(_engine_stub)


class GrpcRenewalTransport:
    """Implements `RenewalTransport` over gRPC."""

    def __init__(self, target: str, *, tls: Tls | None = None) -> None:
        self._replicas = Replicas(target, tls=tls)

    @property
    def address(self) -> str:
        """See `RenewalTransport.address`."""
        return self._replicas.address

    def open(self) -> FrameStream[lease_pb2.RenewLeasesRequest, lease_pb2.RenewLeasesResponse]:
        """See `RenewalTransport.open`."""
        stub = self._replicas.in_use().stub(_lease_stub)
        return GrpcFrameStream(stub.RenewLeases(None), lease_pb2.RenewLeasesResponse)

    async def leave(self, *, silent: bool = False) -> None:
        """See `RenewalTransport.leave`."""
        await self._replicas.leave(self._replicas.in_use(), silent=silent)

    async def aclose(self) -> None:
        """See `RenewalTransport.aclose`."""
        await self._replicas.aclose()


def _engine_stub(channel: grpc.aio.Channel) -> "engine_pb2_grpc.EngineServiceAsyncStub":
    return engine_pb2_grpc.EngineServiceStub(channel)


def _lease_stub(channel: grpc.aio.Channel) -> "lease_pb2_grpc.LeaseServiceAsyncStub":
    return lease_pb2_grpc.LeaseServiceStub(channel)
