"""The plane: its four services under one object."""

from types import TracebackType
from typing import Self

from kvplane.client.channel import Tls
from kvplane.client.clock import Clock, SystemClock
from kvplane.client.engines import Engines
from kvplane.client.leases import Leases
from kvplane.client.replicas import Replicas
from kvplane.client.router import Router
from kvplane.client.sessions import Sessions


class Plane:
    """Speaks to a plane. Use as an asynchronous context manager, in one event loop.

    Each address may be several, `host:port,host:port`: those of a plane's replicas, or a name
    that has several. One is used until it fails. Calls that may be repeated then go to another,
    those with a request id included, and watches resume there.

    Args:
        target: Address of all services, `host:port`.
        leases: Address of LeaseService and EngineService, where it is another.
        registry: Address of SessionService, where it is another.
        router: Address of RouterService, where it is another.
        timeout: Deadline of each unary call, its repetitions included, in seconds.
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
        self._tls = tls
        self._replicas: dict[str, Replicas] = {}
        timing: Clock = clock or SystemClock()
        self.engines = Engines(self._reach(leases), timeout=timeout, clock=timing)
        self.leases = Leases(self._reach(leases), timeout=timeout, clock=timing)
        self.sessions = Sessions(self._reach(registry), timeout=timeout, clock=timing)
        self.router = Router(self._reach(router), timeout=timeout, clock=timing)

    def __repr__(self) -> str:
        """For logs."""
        return f"Plane({', '.join(self._replicas)})"

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
        for replicas in self._replicas.values():
            await replicas.aclose()

    def _reach(self, override: str | None) -> Replicas:
        target = override or self._target
        if target not in self._replicas:
            self._replicas[target] = Replicas(target, tls=self._tls)
        return self._replicas[target]
