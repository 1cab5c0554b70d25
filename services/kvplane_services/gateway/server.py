"""Serves the gateway's application on a socket."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from aiohttp import web

from kvplane_services.gateway.app import READINESS
from kvplane_services.gateway.http_protocol import HttpProtocol


@asynccontextmanager
async def listening(
    app: web.Application,
    *,
    host: str,
    port: int,
    shutdown_grace: float,
) -> AsyncGenerator[tuple[str, int]]:
    """Serves inside of the block, and gives the address that it listens on.

    At the end of the block the socket closes, and running turns have `shutdown_grace` seconds to
    end by themselves. /readyz turns earlier, if `READINESS` is told to stop.

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
        shutdown_timeout=shutdown_grace,
    )
    await runner.setup()
    try:
        # A site of aiohttp's would make connections that answer protocol errors its own way.
        sockets = await _listen(runner, host=host, port=port)
        try:
            bound = sockets.sockets[0].getsockname()
            yield str(bound[0]), int(bound[1])
        finally:
            app[READINESS].stop()
            sockets.close()
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, *, host: str, port: int) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    server = runner.server
    if server is None:
        raise RuntimeError("the runner is not set up")
    return await loop.create_server(
        lambda: HttpProtocol(server, loop=loop), host, port, backlog=1024
    )
