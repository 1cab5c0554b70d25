import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from kvplane_services.gateway.app import READINESS
from kvplane_services.router.model import LegKind, RouteOutcome
from tests.integration.gateway.conftest import GatewayMaker
from tests.integration.gateway.running_gateway import CHAT, RunningGateway
from tests.integration.gateway.scripted_engine import Asked, answer, events, stall

STREAM = {**CHAT, "stream": True}
EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'


async def leave(
    gateway: RunningGateway, body: dict[str, Any], when: Callable[[], Awaitable[object]]
) -> float:
    """Sends a turn, closes its connection once `when` returns; the time of that."""
    task = asyncio.create_task(gateway.chat(body))
    await asyncio.wait_for(when(), 2)
    await asyncio.sleep(0.02)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return time.monotonic()


async def aborted_within_a_second(event: asyncio.Event, since: float) -> None:
    await asyncio.wait_for(event.wait(), 1)
    assert time.monotonic() - since < 1


async def outcomes(gateway: RunningGateway) -> set[tuple[LegKind, RouteOutcome]]:
    await gateway.router.all_reported()
    return {(report.leg, report.outcome) for report in gateway.router.reports}


@pytest.mark.parametrize("body", [CHAT, STREAM])
async def test_client_leaves_while_prefill_runs(
    make_gateway: GatewayMaker, body: dict[str, Any]
) -> None:
    """The prefill leg is aborted, and no decode leg begins."""
    async with make_gateway(prefill=[stall], decode=[answer(b"{}")]) as gateway:
        left = await leave(gateway, body, gateway.prefill.reached.wait)

        await aborted_within_a_second(gateway.prefill.aborted, left)
        assert gateway.decode.asked == []
        assert await outcomes(gateway) == {
            (LegKind.PREFILL, RouteOutcome.CANCELLED),
            (LegKind.DECODE, RouteOutcome.CANCELLED),
        }


@pytest.mark.parametrize("body", [CHAT, STREAM])
async def test_client_leaves_while_decode_waits(
    make_gateway: GatewayMaker, body: dict[str, Any]
) -> None:
    """The decode leg is aborted in the engine's queue."""
    async with make_gateway(decode=[stall]) as gateway:
        left = await leave(gateway, body, gateway.decode.reached.wait)

        await aborted_within_a_second(gateway.decode.aborted, left)
        assert await outcomes(gateway) == {
            (LegKind.PREFILL, RouteOutcome.SUCCEEDED),
            (LegKind.DECODE, RouteOutcome.CANCELLED),
        }


async def test_client_leaves_in_mid_stream(make_gateway: GatewayMaker) -> None:
    """The decode leg is aborted while it streams, even if it says nothing at the moment."""

    async def one_event(request: web.Request, asked: Asked) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(EVENT)
        return await stall(request, asked)

    async with make_gateway(decode=[one_event]) as gateway:
        url = gateway.url + "/v1/chat/completions"
        async with gateway.session.post(url, json=STREAM) as response:
            assert await response.content.readany() == EVENT
        left = time.monotonic()

        await aborted_within_a_second(gateway.decode.aborted, left)
        assert (LegKind.DECODE, RouteOutcome.CANCELLED) in await outcomes(gateway)
        assert gateway.metric('kvplane_legs_in_flight{leg="decode"}') == 0


async def test_client_leaves_while_the_router_decides(make_gateway: GatewayMaker) -> None:
    """A decision that comes too late is taken back, so that it is not counted for ever."""
    async with make_gateway(decode=[answer(b"{}")]) as gateway:
        gateway.router.gate = asyncio.Event()
        await leave(gateway, CHAT, gateway.router.asked.wait)
        await asyncio.sleep(0.05)
        gateway.router.gate.set()
        await asyncio.sleep(0.05)

        assert len(gateway.router.decisions) == 1
        assert await outcomes(gateway) == {
            (LegKind.PREFILL, RouteOutcome.CANCELLED),
            (LegKind.DECODE, RouteOutcome.CANCELLED),
        }
        assert gateway.prefill.asked == []


async def test_slow_reader_slows_the_engine(make_gateway: GatewayMaker) -> None:
    """What the client does not read is not read from the engine either."""
    sent = 0
    piece = b"data: " + b"x" * 65_536 + b"\n\n"

    async def endless(request: web.Request, _asked: Asked) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while True:
            await response.write(piece)
            sent += len(piece)

    async with make_gateway(decode=[endless]) as gateway:
        url = gateway.url + "/v1/chat/completions"
        async with gateway.session.post(url, json=STREAM) as response:
            await response.content.readany()
            before = -1
            async with asyncio.timeout(10):
                while before != sent:
                    before = sent
                    await asyncio.sleep(0.3)
            stuck = sent

        assert stuck < 32 * 2**20


async def test_stop_lets_running_turns_end(make_gateway: GatewayMaker) -> None:
    """When the gateway stops it is unready first, and streams that end in time are complete."""
    done = b"data: [DONE]\n\n"
    async with make_gateway(decode=[events(EVENT, EVENT, done, pause=0.05)]) as gateway:
        url = gateway.url + "/v1/chat/completions"
        async with gateway.session.post(url, json=STREAM) as response:
            await response.content.readany()
            gateway.app[READINESS].stop()
            async with gateway.session.get(gateway.url + "/readyz") as ready:
                assert ready.status == 503
            async with gateway.session.get(gateway.url + "/health") as health:
                assert health.status == 200
            rest = await response.read()
        assert rest.endswith(done)
