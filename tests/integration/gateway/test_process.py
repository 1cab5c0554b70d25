import asyncio
import json
import signal
import socket
import sys
from pathlib import Path

import aiohttp

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
        "--stop-delay",
        "0",
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
