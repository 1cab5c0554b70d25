"""How the long-lived parts of the client reach the plane. grpc_frames.py has the gRPC side."""

from typing import Protocol

from kvplane.api.engine.v1 import engine_pb2
from kvplane.api.lease.v1 import lease_pb2
from kvplane.client.frames import FrameStream

HeartbeatStream = FrameStream[engine_pb2.HeartbeatEngineRequest, engine_pb2.HeartbeatEngineResponse]
RenewalStream = FrameStream[lease_pb2.RenewLeasesRequest, lease_pb2.RenewLeasesResponse]


class EngineTransport(Protocol):
    """How frames and calls reach EngineService."""

    @property
    def address(self) -> str:
        """The replica in use, `host:port`."""
        ...

    async def register(
        self, request: engine_pb2.RegisterEngineRequest, *, seconds: float
    ) -> engine_pb2.RegisterEngineResponse:
        """Calls RegisterEngine. Raises KvplaneClientError."""
        ...

    async def deregister(
        self, request: engine_pb2.DeregisterEngineRequest, *, seconds: float
    ) -> None:
        """Calls DeregisterEngine. Raises KvplaneClientError."""
        ...

    def open(self) -> HeartbeatStream:
        """Opens a HeartbeatEngine stream."""
        ...

    async def leave(self, *, silent: bool = False) -> None:
        """Uses another replica from the next call or stream on, if there is one.

        Args:
            silent: The one in use did not answer. Where it is the only address, it is at least
                connected to anew.

        """
        ...

    async def aclose(self) -> None:
        """Closes the connections."""
        ...


class RenewalTransport(Protocol):
    """How frames reach LeaseService."""

    @property
    def address(self) -> str:
        """The replica in use, `host:port`."""
        ...

    def open(self) -> RenewalStream:
        """Opens a RenewLeases stream."""
        ...

    async def leave(self, *, silent: bool = False) -> None:
        """Uses another replica from the next call or stream on, if there is one.

        Args:
            silent: The one in use did not answer. Where it is the only address, it is at least
                connected to anew.

        """
        ...

    async def aclose(self) -> None:
        """Closes the connections."""
        ...
