"""Gateways whose routers are several processes, of which some go away."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest

from kvplane.api.router.v1 import router_pb2
from kvplane.api.session.v1 import session_pb2
from kvplane.client import Plane as Client
from tests.integration.processes.kvplane_process import Process, running

BODY = {"model": "kvplane-tiny", "prompt": "Once upon a time", "max_tokens": 4}
FREE = "127.0.0.1:0"


class Plane:
    """A lease manager, routers and a gateway, each a process, with two engines."""

    def __init__(self, leases: str, routers: dict[str, Process], gateway: str) -> None:
        self.leases = leases
        self.routers = routers
        self._url = f"http://{gateway}"

    async def turn(self, session: aiohttp.ClientSession) -> str:
        """Holds a turn; returns "served", or what was answered instead."""
        async with session.post(f"{self._url}/v1/completions", json=BODY) as answer:
            body = await answer.text()
            return "served" if answer.status == 200 else f"{answer.status}: {body}"

    async def turns(self, over: asyncio.Event) -> Counter[str]:
        """Holds turns until it is over; how many ended how."""
        ends: Counter[str] = Counter()
        async with aiohttp.ClientSession() as session:
            while not over.is_set():
                ends[await self.turn(session)] += 1
        return ends

    async def until_ready(self) -> None:
        async with asyncio.timeout(20), aiohttp.ClientSession() as session:
            while True:
                async with session.get(f"{self._url}/readyz") as answer:
                    if answer.status == 200:
                        return
                await asyncio.sleep(0.05)


async def in_flight(router: str, most: int) -> int:
    """Turns that a router counts, once its gateway had time to report all that are over."""
    subject = router_pb2.RouteSubject(
        session_key=session_pb2.SessionKey(tenant="t", model="kvplane-tiny", session_id="s")
    )
    counted = 0
    async with Client(router) as asked:
        for _ in range(50):
            answer = await asked.router.explain(subject)
            counted = sum(candidate.in_flight for candidate in answer.candidates)
            if counted <= most:
                break
            await asyncio.sleep(0.1)
    return counted


@asynccontextmanager
async def plane(routers: int) -> AsyncIterator[Plane]:
    async with AsyncExitStack() as stack:

        async def start(*arguments: str) -> Process:
            return await stack.enter_async_context(running(*arguments))

        leases = await (await start("leases", "--grpc", FREE)).address("gRPC")
        started = [
            await start("router", "--grpc", FREE, "--leases", leases) for _ in range(routers)
        ]
        at = {await one.address("gRPC"): one for one in started}
        engine = ("--http", FREE, "--plane", leases, "--decode-ms-per-token", "2")
        for role in ("prefill", "decode"):
            await start("sim-engine", "--role", role, *engine)
        gateway = await start("gateway", "--http", FREE, "--router", ",".join(at))
        yield Plane(leases, at, await gateway.address("HTTP"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
async def test_no_turn_fails_while_routers_go_away_one_by_one(number: signal.Signals) -> None:
    """Whatever becomes of each router in turn, another one decides, and every turn is served."""
    async with plane(2) as it, AsyncExitStack() as stack:
        await it.until_ready()
        over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            held = [tasks.create_task(it.turns(over)) for _ in range(4)]
            await asyncio.sleep(0.5)
            for address, router in it.routers.items():
                router.signal(number)
                if number is signal.SIGSTOP:
                    # Longer than it takes to be found silent.
                    await asyncio.sleep(4.5)
                    router.signal(signal.SIGCONT)
                else:
                    await router.ended()
                    again = ("router", "--grpc", address, "--leases", it.leases)
                    await (await stack.enter_async_context(running(*again))).address("gRPC")
                await asyncio.sleep(0.7)
            over.set()
        ends = sum((each.result() for each in held), Counter[str]())
        assert set(ends) == {"served"}
        assert ends["served"] > 50
        # A router that froze in the middle of its answers counts those turns, which went elsewhere.
        most = len(held) if number is signal.SIGSTOP else 0
        for address in it.routers:
            assert await in_flight(address, most) <= most
