"""Frame streams over gRPC, and the calls that go with them."""

import asyncio
from typing import Any, Generic, TypeVar

import grpc.aio

from kvplane.api.engine.v1 import engine_pb2, engine_pb2_grpc
from kvplane.api.lease.v1 import lease_pb2, lease_pb2_grpc
from kvplane.client.channel import Tls, open_channel
from kvplane.client.errors import UnavailableError, from_rpc
from kvplane.client.frames import FrameStream

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
            raise UnavailableError("the stream is over", code="UNAVAILABLE") from error
        if not isinstance(answer, self._response_type):  # gRPC's end-of-stream mark.
            raise UnavailableError("the plane ended the stream", code="UNAVAILABLE")
        return answer

    def cancel(self) -> None:
        """See `FrameStream.cancel`."""
        self._call.cancel()


class GrpcEngineTransport:
    """Implements `EngineTransport` over gRPC. Opens its channel at the first use."""

    def __init__(self, target: str, *, tls: Tls | None = None) -> None:
        self._channel = open_channel(target, tls=tls)
        self._stub = engine_pb2_grpc.EngineServiceStub(self._channel)

    async def register(
        self, request: engine_pb2.RegisterEngineRequest, *, seconds: float
    ) -> engine_pb2.RegisterEngineResponse:
        """See `EngineTransport.register`."""
        try:
            return await self._stub.RegisterEngine(request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error) from error

    async def deregister(
        self, request: engine_pb2.DeregisterEngineRequest, *, seconds: float
    ) -> None:
        """See `EngineTransport.deregister`."""
        try:
            await self._stub.DeregisterEngine(request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error) from error

    def open(
        self,
    ) -> FrameStream[engine_pb2.HeartbeatEngineRequest, engine_pb2.HeartbeatEngineResponse]:
        """See `EngineTransport.open`."""
        return GrpcFrameStream(self._stub.HeartbeatEngine(None), engine_pb2.HeartbeatEngineResponse)

    async def aclose(self) -> None:
        """See `EngineTransport.aclose`."""
        await self._channel.close(None)


class GrpcRenewalTransport:
    """Implements `RenewalTransport` over gRPC."""

    def __init__(self, target: str, *, tls: Tls | None = None) -> None:
        self._channel = open_channel(target, tls=tls)
        self._stub = lease_pb2_grpc.LeaseServiceStub(self._channel)

    def open(self) -> FrameStream[lease_pb2.RenewLeasesRequest, lease_pb2.RenewLeasesResponse]:
        """See `RenewalTransport.open`."""
        return GrpcFrameStream(self._stub.RenewLeases(None), lease_pb2.RenewLeasesResponse)

    async def aclose(self) -> None:
        """See `RenewalTransport.aclose`."""
        await self._channel.close(None)
