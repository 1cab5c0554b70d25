"""How the long-lived parts of the client go from one replica of the plane to another."""

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from kvplane.client.errors import (
    AnswerTimeoutError,
    KvplaneClientError,
    UnavailableError,
    moves_on,
)
from kvplane.client.outage import Outage


class Movable(Protocol):
    """A transport to one of several replicas; see `EngineTransport`."""

    @property
    def address(self) -> str:
        """The replica in use."""
        ...

    async def leave(self, *, silent: bool = False) -> None:
        """Uses another replica from now on, if there is one."""
        ...


async def leave_after(error: KvplaneClientError, transport: Movable, outage: Outage) -> None:
    """Leaves the replica in use, if another one may do better than it did, and logs that."""
    failed = transport.address
    if moves_on(error):
        await transport.leave(silent=isinstance(error, AnswerTimeoutError))
    outage.goes_on(error, at=failed, to=transport.address)


async def leave_ended(transport: Movable, *, who: str, log: logging.Logger) -> None:
    """Leaves a replica that ends its streams in good order, for it stops."""
    ended = transport.address
    await transport.leave()
    log.info("%s: the replica at %s ends the stream, on to %s", who, ended, transport.address)


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
