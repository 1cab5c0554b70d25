"""An engine for tests: real sockets, answers by script, and a record of what it was asked."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Behaviour = Callable[[web.Request, "Asked"], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Asked:
    """One request as it reached the engine."""

    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def json(self) -> dict[str, Any]:
        decoded: dict[str, Any] = json.loads(self.raw)
        return decoded


@dataclass
class ScriptedEngine:
    """Answers each request with `behaviour`, or the next of `script` while there are any."""

    url: str
    behaviour: Behaviour
    script: list[Behaviour] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    # Set when a handler was cancelled because its client, the gateway, closed the connection.
    aborted: asyncio.Event = field(default_factory=asyncio.Event)
    # Set when a request is there.
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def asked_times(self, times: int) -> None:
        """Returns once that many requests are there."""
        async with asyncio.timeout(20), self.changed:
            await self.changed.wait_for(lambda: len(self.asked) >= times)


@asynccontextmanager
async def scripted_engine(behaviour: Behaviour) -> AsyncGenerator[ScriptedEngine]:
    """Runs an engine on a free port."""
    engine = ScriptedEngine(url="", behaviour=behaviour)

    async def handle(request: web.Request) -> web.StreamResponse:
        asked = Asked(
            path=request.path,
            headers={name.lower(): value for name, value in request.headers.items()},
            raw=await request.read(),
        )
        engine.asked.append(asked)
        engine.reached.set()
        async with engine.changed:
            engine.changed.notify_all()
        behave = engine.script.pop(0) if engine.script else engine.behaviour
        try:
            return await behave(request, asked)
        except asyncio.CancelledError:
            engine.aborted.set()
            raise

    app = web.Application(client_max_size=2**30)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=0.1,
        max_field_size=2**17,
    )
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield engine
    finally:
        await runner.cleanup()


# -- Behaviours -------------------------------------------------------------------------------

HANDLE = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": "e-1",
    "remote_block_ids": [[1, 2, 3]],
    "remote_request_id": "r-1",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
}


def answer(body: bytes | dict[str, Any], *, status: int = 200, **headers: str) -> Behaviour:
    """Answers with a whole body."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def behave(_request: web.Request, _asked: Asked) -> web.StreamResponse:
        return web.Response(
            body=raw,
            status=status,
            headers={
                "Content-Type": "application/json",
                **{name.replace("_", "-"): value for name, value in headers.items()},
            },
        )

    return behave


def prefill_answer(params: Any = HANDLE) -> Behaviour:
    """What vLLM answers to a prefill leg."""
    return answer(
        {
            "id": "chatcmpl-p",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}}],
            "usage": {
                "prompt_tokens": 40,
                "completion_tokens": 1,
                "total_tokens": 41,
                "prompt_tokens_details": {"cached_tokens": 16},
            },
            "kv_transfer_params": params,
        }
    )


def events(*pieces: bytes, pause: float = 0.0, die: bool = False) -> Behaviour:
    """Streams pieces, one write each; dies instead of ending if asked to."""

    async def behave(request: web.Request, _asked: Asked) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(pause)
        if die:
            transport = request.transport
            assert transport is not None
            transport.abort()
        return response

    return behave


async def stall(_request: web.Request, _asked: Asked) -> web.StreamResponse:
    """Never answers."""
    await asyncio.Event().wait()
    raise AssertionError


async def die_at_once(request: web.Request, _asked: Asked) -> web.StreamResponse:
    """Closes the connection without a byte."""
    transport = request.transport
    assert transport is not None
    transport.abort()
    return web.Response()


def cut_short(body: bytes, sent: int) -> Behaviour:
    """Promises the whole body and sends the first `sent` bytes of it."""

    async def behave(request: web.Request, _asked: Asked) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.content_length = len(body)
        await response.prepare(request)
        if sent:
            await response.write(body[:sent])
            await asyncio.sleep(0.01)
        transport = request.transport
        assert transport is not None
        transport.abort()
        return response

    return behave
