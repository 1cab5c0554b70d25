"""What the gateway costs: latency and CPU it adds to a turn, and CPU for each streamed chunk.

Two engines that answer at once, the gateway, and one client, each a process of its own on
loopback. The client runs prefill and decode itself for comparison. Run it on a quiet machine:

    python bench/gateway_overhead.py [--turns 500] [--chunks 20000]
"""

import argparse
import asyncio
import json
import multiprocessing
import multiprocessing.connection
import os
import statistics
import time
from collections.abc import Callable, Coroutine
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import aiohttp

from kvplane.transfer_params import KEY, PREFILL_ONLY
from kvplane_services.clock import SystemClock
from kvplane_services.gateway.app import build_gateway
from kvplane_services.gateway.config import GatewayConfig
from kvplane_services.gateway.server import listening
from kvplane_services.router.model import (
    Decision,
    DecisionReason,
    Leg,
    LegReport,
    Strategy,
    Subject,
)
from kvplane_services.telemetry import Telemetry

_ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "bench",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "x" * 64}}],
        "usage": {"prompt_tokens": 4000, "completion_tokens": 16, "total_tokens": 4016},
        "kv_transfer_params": {"do_remote_prefill": True, "remote_block_ids": [[*range(250)]]},
    }
).encode()
_EVENT = b'data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":" token"}}]}\n\n'
_PROMPT = "word " * 3200

_Conn = multiprocessing.connection.Connection


class FixedRouter:
    """Sends every turn to the same engines."""

    def __init__(self, prefill: str, decode: str) -> None:
        self._prefill = Leg("engines/p", 1, prefill, json.dumps(dict(PREFILL_ONLY)).encode())
        self._decode = Leg("engines/d", 1, decode, json.dumps({KEY: {"session": []}}).encode())
        self._decided = 0

    async def decide(
        self,
        subject: Subject,
        *,
        forced: Strategy | None = None,
        request_id: str = "",
        excluded: AbstractSet[str] = frozenset(),
    ) -> Decision:
        """See `Router.decide`."""
        del forced, request_id, excluded
        self._decided += 1
        return Decision(
            decision_id=str(self._decided),
            strategy=Strategy.RECOMPUTE,
            reason=DecisionReason.NO_LEASE,
            details="",
            prefill=self._prefill,
            decode=self._decode,
            session_key=subject.session_key,
        )

    async def report(self, report: LegReport) -> None:
        """See `Router.report`."""

    async def models(self) -> tuple[str, ...]:
        """See `Router.models`."""
        return ("bench",)


async def _engine(conn: _Conn) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.lower().split(b"\r\n")
                length = next(int(x[15:]) for x in lines if x.startswith(b"content-length:"))
                body = json.loads(await reader.readexactly(length))
                if body.get("stream"):
                    await _stream(writer, body["max_tokens"], body.get("pace", 0.0))
                else:
                    writer.write(
                        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                        b"Content-Length: %d\r\n\r\n%s" % (len(_ANSWER), _ANSWER)
                    )
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        conn.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()


async def _stream(writer: asyncio.StreamWriter, events: int, pace: float) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    for event in (*(_EVENT,) * events, b"data: [DONE]\n\n"):
        writer.write(b"%x\r\n%s\r\n" % (len(event), event))
        await writer.drain()
        await asyncio.sleep(pace)
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def _gateway(conn: _Conn, prefill: str, decode: str) -> None:
    telemetry = Telemetry()
    app = build_gateway(
        router=FixedRouter(prefill, decode),
        settings=GatewayConfig(),
        clock=SystemClock(),
        telemetry=telemetry,
    )
    async with listening(app, host="127.0.0.1", port=0, shutdown_grace=0.1) as (_, port):
        conn.send(port)
        await asyncio.Event().wait()


def _run(main: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
    asyncio.run(main(*args))


def _started(
    main: Callable[..., Coroutine[Any, Any, None]], *args: str
) -> tuple[multiprocessing.Process, str]:
    mine, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_run, args=(main, theirs, *args), daemon=True)
    process.start()
    return process, f"http://127.0.0.1:{mine.recv()}"


def _cpu_seconds(pid: int | None) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _post(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any]
) -> tuple[float, float]:
    """Seconds to the first byte and to the last."""
    began = time.perf_counter()
    async with session.post(url + "/v1/chat/completions", json=body) as response:
        await response.content.readany()
        first = time.perf_counter() - began
        await response.read()
    return first, time.perf_counter() - began


async def _measure(gateway: str, prefill: str, decode: str, pid: int | None, args: Any) -> None:
    body = {"model": "bench", "messages": [{"role": "user", "content": _PROMPT}]}
    stream = {**body, "stream": True, "max_tokens": args.chunks}
    paced = {**body, "stream": True, "max_tokens": 200, "pace": 0.02}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        for _ in range(50):
            await _post(session, gateway, body)
        direct, through = [], []
        before = _cpu_seconds(pid)
        for _ in range(args.turns):
            first = (await _post(session, prefill, body))[1]
            direct.append(first + (await _post(session, decode, body))[1])
            through.append((await _post(session, gateway, body))[1])
        cpu = (_cpu_seconds(pid) - before) / args.turns
        added = statistics.median(through) - statistics.median(direct)
        print(
            f"whole answers, one at a time: {statistics.median(direct) * 1e3:.2f} ms direct, "
            f"{statistics.median(through) * 1e3:.2f} ms through the gateway: "
            f"{added * 1e3:.2f} ms added, {cpu * 1e6:.0f} us of CPU a turn"
        )

        before, began = _cpu_seconds(pid), time.perf_counter()
        await asyncio.gather(*(_post(session, gateway, body) for _ in range(args.turns)))
        rate = args.turns / (time.perf_counter() - began)
        cpu = (_cpu_seconds(pid) - before) / args.turns
        print(f"whole answers, all at once: {rate:.0f} turns/s, {cpu * 1e6:.0f} us of CPU a turn")

        before = _cpu_seconds(pid)
        await asyncio.gather(*(_post(session, gateway, paced) for _ in range(50)))
        cpu = (_cpu_seconds(pid) - before) / (50 * 200)
        print(f"50 streams of 200 chunks, 20 ms apart: {cpu * 1e6:.1f} us of CPU a chunk")

        before, began = _cpu_seconds(pid), time.perf_counter()
        await _post(session, gateway, stream)
        rate = args.chunks / (time.perf_counter() - began)
        cpu = (_cpu_seconds(pid) - before) / args.chunks
        print(
            f"one stream as fast as it goes: {rate:.0f} chunks/s, {cpu * 1e6:.1f} us of CPU a chunk"
        )


def main() -> None:
    """Starts everything, measures, and prints four lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--turns", type=int, default=500)
    parser.add_argument("--chunks", type=int, default=20_000)
    args = parser.parse_args()
    _, prefill = _started(_engine)
    _, decode = _started(_engine)
    process, gateway = _started(_gateway, prefill, decode)
    asyncio.run(_measure(gateway, prefill, decode, process.pid, args))


if __name__ == "__main__":
    main()
