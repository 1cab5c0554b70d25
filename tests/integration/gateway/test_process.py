import asyncio
import json
import signal
import socket
import sys
from pathlib import Path

import aiohttp
import pytest

from kvplane_services.clock import SystemClock
from kvplane_services.gateway.app import build_gateway
from kvplane_services.gateway.config import GatewayConfig
from kvplane_services.gateway.server import listening
from kvplane_services.telemetry import Telemetry
from tests.integration.gateway.recording_router import RecordingRouter

KVPLANE = str(Path(sys.executable).with_name("kvplane"))


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def test_process_lives_without_a_router_and_stops_cleanly() -> None:
    """`kvplane gateway` says where it listens, tells clients to retry, and ends on SIGTERM."""
    process = await asyncio.create_subprocess_exec(
        KVPLANE,
        "gateway",
        "--router",
        f"127.0.0.1:{closed_port()}",
        "--http",
        "127.0.0.1:0",
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        line = (await asyncio.wait_for(process.stderr.readline(), 30)).decode()
        assert line.startswith("kvplane: HTTP ready on http://127.0.0.1:")
        url = line.split()[-1]
        async with aiohttp.ClientSession() as session:
            async with session.get(url + "/health") as response:
                assert response.status == 200
            async with session.get(url + "/readyz") as response:
                assert response.status == 503
            body = {"model": "m", "messages": []}
            async with session.post(url + "/v1/chat/completions", json=body) as response:
                assert response.status == 503
                assert int(response.headers["Retry-After"]) >= 1
                assert json.loads(await response.read())["error"]["type"] == "server_error"
        process.send_signal(signal.SIGTERM)
        _, rest = await asyncio.wait_for(process.communicate(), 20)
        assert process.returncode == 0
        assert b"Traceback" not in rest
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_turns_are_taken_while_a_balancer_takes_notice() -> None:
    """Asked to stop, a gateway says so at /readyz first and serves on for `drain_delay`."""
    telemetry = Telemetry()
    app = build_gateway(
        router=RecordingRouter(prefills=[], decodes=[]),
        settings=GatewayConfig(),
        clock=SystemClock(),
        telemetry=telemetry,
    )
    stop, serving = asyncio.Event(), asyncio.Event()
    url = ""

    async def serve() -> None:
        nonlocal url
        async with listening(
            app,
            host="127.0.0.1",
            port=0,
            shutdown_grace=1.0,
            clock=SystemClock(),
            drain_delay=1.0,
        ) as (host, port):
            url = f"http://{host}:{port}"
            serving.set()
            await stop.wait()

    async with asyncio.TaskGroup() as tasks, aiohttp.ClientSession() as session:
        ended = tasks.create_task(serve())
        await serving.wait()
        stop.set()
        await asyncio.sleep(0.05)
        async with session.get(url + "/readyz") as response:
            assert response.status == 503
        async with session.post(url + "/v1/chat/completions", json={"model": "m"}) as response:
            assert response.status == 400
        await ended
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(url + "/health")
    telemetry.close()
