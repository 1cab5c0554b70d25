"""How the long-lived parts of the client go from one replica of the plane to another."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from kvplane.client.errors import (
    AnswerTimeoutError,
    KvplaneClientError,
    UnavailableError,
    moves_on,
)


class Movable(Protocol):
    """A transport to one of several replicas; see `EngineTransport.leave`."""

    async def leave(self, *, silent: bool = False) -> None:
        """Uses another replica from now on, if there is one."""
        ...


async def leave_after(error: KvplaneClientError, transport: Movable) -> None:
    """Leaves the replica in use, if another one may do better than it did."""
    if moves_on(error):
        await transport.leave(silent=isinstance(error, AnswerTimeoutError))


async def here_or_elsewhere(work: Callable[[], Awaitable[None]], transport: Movable) -> None:
    """Does it at the replica in use, or at another one if that one is away.

    Raises:
        KvplaneClientError: It failed there too.

    """
    try:
        await work()
    except UnavailableError:
        await transport.leave()
        await work()
