"""Serves the gateway's application on a socket."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from aiohttp import web

from kvplane_services.gateway.app import READINESS


@asynccontextmanager
async def listening(
    app: web.Application, *, host: str, port: int, shutdown_grace: float
) -> AsyncGenerator[tuple[str, int]]:
    """Serves inside of the block, and gives the address that it listens on.

    At the end of the block /readyz turns first, the socket closes, and running turns have
    `shutdown_grace` seconds to end by themselves.

    Args:
        app: From `build_gateway`.
        host: Address to bind.
        port: Port to bind; 0 for any free one.
        shutdown_grace: Seconds.

    Raises:
        OSError: The address cannot be bound.

    """
    runner = web.AppRunner(
        app,
        # A turn ends when its client leaves.
        handler_cancellation=True,
        # Requests carry keys, and turns are counted and traced elsewhere.
        access_log=None,
        shutdown_timeout=shutdown_grace,
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, backlog=1024)
        await site.start()
        bound = runner.addresses[0]
        yield str(bound[0]), int(bound[1])
    finally:
        app[READINESS].stop()
        await runner.cleanup()
