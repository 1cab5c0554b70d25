"""A gRPC server with what operators and probes expect: health, reflection, rich errors."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

# The stubs that come with pyright lack the asyncio half.
from grpc_health.v1._async import HealthServicer  # pyright: ignore[reportMissingImports]
from grpc_reflection.v1alpha import reflection

from kvplane_services.grpc_drain import DrainInterceptor
from kvplane_services.grpc_errors import ErrorInterceptor

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class GrpcServerConfig:
    """Where and how to listen; durations in seconds.

    Raises:
        ValueError: A duration or a limit is not positive.

    """

    # host:port; port 0 takes a free one. Loopback unless the operator says otherwise: without
    # TLS credentials the server neither encrypts nor tells callers apart.
    address: str = "127.0.0.1:0"
    # A full report carries the handles of everything that an engine retains.
    max_message_bytes: int = 64 * 1024 * 1024
    # HTTP/2 pings to a silent peer, and how long its answer may take.
    keepalive: float = 30.0
    keepalive_timeout: float = 10.0
    # How long a stop waits for calls in progress.
    stop_grace: float = 5.0

    def __post_init__(self) -> None:
        if min(self.max_message_bytes, self.keepalive, self.keepalive_timeout) <= 0:
            raise ValueError("message size and keepalive durations must be positive")
        if self.stop_grace < 0:
            raise ValueError("stop_grace must not be negative")


class GrpcServer:
    """Serves the services that were added to it.

    Args:
        config: Where and how to listen.
        credentials: TLS; None to serve in the clear.
        interceptors: Further interceptors, outermost first, inside of the error table.

    """

    def __init__(
        self,
        *,
        config: GrpcServerConfig | None = None,
        credentials: grpc.ServerCredentials | None = None,
        interceptors: Sequence["grpc.aio.ServerInterceptor[Any, Any]"] = (),
    ) -> None:
        self._config = config or GrpcServerConfig()
        self._stopping = asyncio.Event()
        self._server = grpc.aio.server(
            interceptors=[
                ErrorInterceptor(),
                *interceptors,
                DrainInterceptor(stopping=self._stopping),
            ],
            options=_options(self._config),
        )
        self._health = HealthServicer()
        self._names: list[str] = []
        self._credentials = credentials
        self._stopped = False

    def add(self, register: Callable[[S, Any], None], servicer: S, name: str) -> None:
        """Adds a service before the start.

        Args:
            register: The generated `add_...Servicer_to_server`.
            servicer: What implements it.
            name: Full name of the service, for health and reflection.

        """
        register(servicer, self._server)
        self._names.append(name)

    async def start(self) -> int:
        """Listens; returns the bound port.

        Raises:
            OSError: The address cannot be bound.

        """
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        described = (*self._names, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name)
        reflection.enable_server_reflection((*described, reflection.SERVICE_NAME), self._server)
        port = self._bind()
        await self._server.start()
        for name in ("", *self._names):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return port

    async def announce_stop(self) -> None:
        """Reports itself as not serving, and serves on. Idempotent."""
        await self._health.enter_graceful_shutdown()

    async def stop(self) -> None:
        """Reports itself as not serving, finishes calls within the grace, and closes."""
        if self._stopped:
            return
        self._stopped = True
        await self.announce_stop()
        self._stopping.set()
        await self._server.stop(self._config.stop_grace)

    async def run(self) -> None:
        """Serves, once started, until cancelled; then stops."""
        try:
            await self._server.wait_for_termination()
        finally:
            # The cancelled task's own cleanup: the grace bounds it.
            await asyncio.shield(self.stop())

    def _bind(self) -> int:
        address = self._config.address
        try:
            if self._credentials is not None:
                port = self._server.add_secure_port(address, self._credentials)
            else:
                port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from error
        if port == 0:
            raise OSError(f"cannot listen on {address}: is it taken?")
        return port


def _options(config: GrpcServerConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", config.max_message_bytes),
        ("grpc.keepalive_time_ms", round(config.keepalive * 1000)),
        ("grpc.keepalive_timeout_ms", round(config.keepalive_timeout * 1000)),
        # How long gRPC waits for the answer to a ping: a minute, whatever the line above says.
        ("grpc.http2.ping_timeout_ms", round(config.keepalive_timeout * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        # Clients ping as often as this server does, and a little more often is no attack.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5000),
        ("grpc.http2.max_ping_strikes", 0),
        # A port that another process holds is an error, not a share of its calls.
        ("grpc.so_reuseport", 0),
    ]
