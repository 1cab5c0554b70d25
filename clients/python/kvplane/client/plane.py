"""The plane: its four services under one object."""

from types import TracebackType
from typing import Self

import grpc.aio

from kvplane.client.calls import ServiceCalls
from kvplane.client.channel import Tls, open_channel
from kvplane.client.clock import Clock, SystemClock
from kvplane.client.engines import Engines
from kvplane.client.leases import Leases
from kvplane.client.router import Router
from kvplane.client.sessions import Sessions


class Plane:
    """Speaks to a plane. Use as an asynchronous context manager, in one event loop.

    Args:
        target: Address of all services, `host:port`.
        leases: Address of LeaseService and EngineService, where it is another.
        registry: Address of SessionService, where it is another.
        router: Address of RouterService, where it is another.
        timeout: Deadline of each unary call, in seconds.
        tls: Encryption; None for none.
        clock: Time, for tests.

    Raises:
        ValueError: An address is not `host:port`.

    Attributes:
        engines: EngineService.
        leases: LeaseService.
        sessions: SessionService.
        router: RouterService.

    """

    def __init__(
        self,
        target: str = "127.0.0.1:7000",
        *,
        leases: str | None = None,
        registry: str | None = None,
        router: str | None = None,
        timeout: float = 5.0,
        tls: Tls | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._target = target
        self._timeout = timeout
        self._tls = tls
        self._clock: Clock = clock or SystemClock()
        self._channels: dict[str, grpc.aio.Channel] = {}
        self.engines = Engines(*self._reach(leases))
        self.leases = Leases(*self._reach(leases))
        self.sessions = Sessions(*self._reach(registry))
        self.router = Router(*self._reach(router))

    def __repr__(self) -> str:
        """For logs."""
        return f"Plane({', '.join(self._channels)})"

    async def __aenter__(self) -> Self:
        """The plane itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes the connections."""
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections; calls in flight fail. Idempotent."""
        for channel in self._channels.values():
            await channel.close(None)

    def _reach(self, override: str | None) -> tuple[grpc.aio.Channel, ServiceCalls]:
        target = override or self._target
        if target not in self._channels:
            self._channels[target] = open_channel(target, tls=self._tls)
        return self._channels[target], ServiceCalls(
            target=target, timeout=self._timeout, clock=self._clock
        )
