"""How processes stop under a rolling restart: they say so, serve on for a while, and then end."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kvplane.client.plane import Plane
from tests.integration.processes.kvplane_process import Process, running

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
BODY = {"model": "kvplane-tiny", "prompt": "Once upon a time", "max_tokens": 4}


class Gateway:
    """A client of a gateway that opens a connection for each request."""

    def __init__(self, session: aiohttp.ClientSession, address: str) -> None:
        self._session = session
        self._url = f"http://{address}"

    async def ready(self) -> int:
        """The status of /readyz."""
        async with self._session.get(f"{self._url}/readyz") as answer:
            return answer.status

    async def until_ready(self) -> None:
        async with asyncio.timeout(20):
            while True:
                if await self.ready() == 200:
                    return
                await asyncio.sleep(0.05)

    async def turn(self, **fields: object) -> int:
        async with self._session.post(f"{self._url}/v1/completions", json=BODY | fields) as answer:
            await answer.read()
            return answer.status


@asynccontextmanager
async def plane(*options: str) -> AsyncIterator[tuple[Process, Gateway, str]]:
    """`kvplane up` with two engines, ready for turns."""
    listen = ("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0")
    async with running("up", *listen, *options) as up, aiohttp.ClientSession() as session:
        grpc_address = await up.address("gRPC")
        gateway = Gateway(session, await up.address("HTTP"))
        engines = ("--http", "127.0.0.1:0", "--plane", grpc_address, "--decode-ms-per-token", "5")
        async with (
            running("sim-engine", "--role", "prefill", *engines),
            running("sim-engine", "--role", "decode", *engines),
        ):
            await gateway.until_ready()
            yield up, gateway, grpc_address


async def health(address: str) -> int:
    async with grpc.aio.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest()
        answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=5)
        return int(answer.status)


async def test_stop_is_announced_while_everything_is_served() -> None:
    """For the delay /readyz and health say no while turns and calls succeed; then it ends."""
    async with plane("--stop-delay", "2") as (up, gateway, address):
        assert await health(address) == SERVING
        start = time.monotonic()
        up.signal(signal.SIGTERM)
        await up.until_said("stopping in 2 s")
        assert await gateway.ready() == 503
        assert await health(address) == NOT_SERVING
        assert await gateway.turn() == 200
        # Connections made now are served too.
        async with Plane(address) as fresh:
            assert len([one async for one in fresh.engines.list()]) == 2
        assert await up.ended() == 0
        assert time.monotonic() - start >= 2.0
        with pytest.raises(aiohttp.ClientConnectorError):
            await gateway.ready()


async def test_turn_that_runs_is_finished() -> None:
    """A turn that began before the listener closed is answered to its end."""
    async with plane("--stop-delay", "0.2") as (up, gateway, _):
        turn = asyncio.create_task(gateway.turn(max_tokens=300))
        await asyncio.sleep(0.3)
        assert await up.end() == 0
        assert await turn == 200
        assert not any("Traceback" in line for line in up.lines)


async def test_interrupt_from_a_terminal_does_not_wait() -> None:
    """SIGINT skips the delay."""
    async with plane("--stop-delay", "60") as (up, _, __):
        async with asyncio.timeout(10):
            assert await up.end(signal.SIGINT) == 0


async def test_idle_connections_leave_a_gateway_that_stops() -> None:
    """Answers during the delay close their connection, so that none is cut at its end."""
    async with plane("--stop-delay", "30") as (up, _, __):
        host, port = (await up.address("HTTP")).split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        get = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        writer.write(get)
        assert b"connection: close" not in (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(len('{"status":"ok"}'))
        up.signal(signal.SIGTERM)
        await up.until_said("stopping")
        writer.write(get)
        assert b"connection: close" in (await reader.readuntil(b"\r\n\r\n")).lower()
        assert await reader.read() == b'{"status":"ok"}'
        writer.close()


@pytest.mark.parametrize("process", ["leases", "registry", "router"])
async def test_every_grpc_process_announces_its_stop(process: str) -> None:
    """Health turns in each of the processes, by service too, before they stop."""
    async with running(process, "--grpc", "127.0.0.1:0", "--stop-delay", "1") as started:
        address = await started.address("gRPC")
        started.signal(signal.SIGTERM)
        await started.until_said("stopping in 1 s")
        assert await health(address) == NOT_SERVING
        assert await started.ended() == 0
