"""A TCP proxy that can be cut, as a network is: what is sent waits, and nobody is told."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from kvplane_services.clock import SystemClock

_CHUNK: Final = 65_536


class TcpProxy:
    """Passes connections on from a port of its own to another.

    While it is cut, connections stay open, new ones are taken, and no byte passes; afterwards
    what waited is delivered. Made by `TcpProxies`, in whose thread it lives.

    Args:
        port: Loopback port that it passes to.
        loop: Where it runs.

    """

    def __init__(self, port: int, *, loop: asyncio.AbstractEventLoop) -> None:
        self._upstream = port
        self._loop = loop
        self._passing = asyncio.Event()
        self._passing.set()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._clock = SystemClock()
        self.port = 0
        # When each connection was asked for, on the monotonic clock.
        self.attempts: list[float] = []

    @property
    def target(self) -> str:
        """Its address."""
        return f"127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._connections)

    def cut(self) -> None:
        """Nothing passes from here on."""
        self._loop.call_soon_threadsafe(self._passing.clear)

    def mend(self) -> None:
        """Everything passes again, and first what waited."""
        self._loop.call_soon_threadsafe(self._passing.set)

    async def start(self) -> None:
        """Listens on a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Closes everything."""
        if self._server is not None:
            self._server.close()
        for task in tuple(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self.attempts.append(self._clock.now())
        try:
            await self._passing.wait()
            with suppress(OSError):
                await self._join(reader, writer)
        except asyncio.CancelledError:
            pass  # The proxy stops; a task that says so would be logged.
        finally:
            self._connections.discard(task)
            writer.close()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._upstream)
        pumps = {
            asyncio.ensure_future(self._pump(reader, back)),
            asyncio.ensure_future(self._pump(there, writer)),
        }
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            back.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK):
            await self._passing.wait()
            writer.write(data)
            await writer.drain()


class TcpProxies:
    """Proxies that live in a thread of their own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies")
        self._made: list[TcpProxy] = []
        self._thread.start()

    def to(self, port: int) -> TcpProxy:
        """A proxy to a loopback port."""
        proxy = TcpProxy(port, loop=self._loop)
        asyncio.run_coroutine_threadsafe(proxy.start(), self._loop).result(10)
        self._made.append(proxy)
        return proxy

    def close(self) -> None:
        """Ends all."""
        for proxy in self._made:
            asyncio.run_coroutine_threadsafe(proxy.stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@contextmanager
def tcp_proxies() -> Iterator[TcpProxies]:
    """Proxies for as long as the block runs."""
    proxies = TcpProxies()
    try:
        yield proxies
    finally:
        proxies.close()
