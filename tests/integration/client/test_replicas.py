"""Clients of a plane of several replicas, as their replicas die, stop and freeze.

The replicas are processes that share nothing: what is shown is where a client goes, not what
the plane remembers.
"""

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import pytest

from kvplane.api.engine.v1 import engine_pb2
from kvplane.client import (
    Directive,
    EngineLink,
    EngineLoad,
    Plane,
    Reset,
    RetentionLog,
    Upserted,
)
from tests.integration.processes.kvplane_process import Process, running
from tests.integration.processes.wire_engine import WireEngine

# How long a client may take to go on elsewhere, on a busy machine, where the old replica refuses.
SOON = 4.0
# The same where it is silent: calls and frames wait 5 s for an answer.
PATIENCE = 8.0


class Replica:
    """One replica, which knows one engine of its own that tells it apart."""

    def __init__(self, process: Process, address: str, engine: WireEngine) -> None:
        self.process = process
        self.address = address
        self.engine = engine.name


@asynccontextmanager
async def replicas(count: int = 3) -> AsyncIterator[dict[str, Replica]]:
    """That many, by the name of the engine that only each of them knows."""
    async with AsyncExitStack() as stack:
        found: dict[str, Replica] = {}
        for number in range(count):
            process = await stack.enter_async_context(running("leases", "--grpc", "127.0.0.1:0"))
            address = await process.address("gRPC")
            engine = WireEngine(address, f"at-{number}", engine_pb2.ROLE_PREFILL)
            await stack.enter_async_context(engine)
            found[engine.name] = Replica(process, address, engine)
        yield found


def addresses(found: dict[str, Replica]) -> str:
    return ",".join(one.address for one in found.values())


async def in_use(plane: Plane, found: dict[str, Replica]) -> Replica:
    """The replica that answers."""
    [name] = [one.name async for one in plane.engines.list() if one.name in found]
    return found[name]


@contextmanager
def within(seconds: float) -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds


async def go(replica: Replica, number: signal.Signals) -> None:
    """Sends the signal; returns once it is dead, where it kills."""
    if number is signal.SIGSTOP:
        replica.process.signal(number)
    else:
        await replica.process.end(number)


@pytest.mark.parametrize(
    ("number", "seconds"),
    [(signal.SIGKILL, SOON), (signal.SIGTERM, SOON), (signal.SIGSTOP, PATIENCE)],
)
async def test_calls_go_to_another_replica(number: signal.Signals, seconds: float) -> None:
    """Whatever becomes of the replica in use, the next call is answered by another."""
    async with replicas() as found, Plane(addresses(found)) as plane:
        first = await in_use(plane, found)
        await go(first, number)
        with within(seconds):
            assert await in_use(plane, found) is not first
        with within(0.5):
            assert await in_use(plane, found) is not first


async def test_calls_come_through_while_replicas_restart_one_by_one() -> None:
    """Calls that run all the time do not notice that replicas go away and come back."""
    async with replicas() as found, Plane(addresses(found)) as plane, AsyncExitStack() as stack:
        over = asyncio.Event()

        async def calls() -> int:
            made = 0
            while not over.is_set():
                assert [one.name async for one in plane.engines.list()]
                made += 1
            return made

        async with asyncio.TaskGroup() as tasks:
            calling = [tasks.create_task(calls()) for _ in range(4)]
            for one in found.values():
                await one.process.end(signal.SIGTERM)
                again = await stack.enter_async_context(running("leases", "--grpc", one.address))
                await again.address("gRPC")
                await stack.enter_async_context(
                    WireEngine(one.address, "again", engine_pb2.ROLE_PREFILL)
                )
            over.set()
        assert sum(each.result() for each in calling) > 20


@pytest.mark.parametrize(
    ("number", "seconds"),
    [(signal.SIGKILL, SOON), (signal.SIGTERM, SOON), (signal.SIGSTOP, PATIENCE)],
)
async def test_watch_goes_on_at_another_replica(number: signal.Signals, seconds: float) -> None:
    """A watch is resumed elsewhere, or started over where the other one has other changes."""
    async with replicas() as found, Plane(addresses(found)) as plane:
        events = plane.engines.watch()
        first = await anext(events)
        assert isinstance(first, Upserted)
        await go(found[first.value.name], number)
        seen: list[object] = []
        with within(seconds):
            async for event in events:
                seen.append(event)
                if isinstance(event, Upserted) and event.value.name != first.value.name:
                    break
        await events.aclose()
        assert any(isinstance(event, Reset) for event in seen)


class Source(RetentionLog):
    """An engine that holds nothing."""

    def load(self) -> EngineLoad:
        return EngineLoad()

    def apply(self, directives: Sequence[Directive], *, sent_at: float) -> None:
        pass


@asynccontextmanager
async def linked(target: str) -> AsyncIterator[EngineLink]:
    link = EngineLink(
        target=target,
        engine_id="linked",
        engine=engine_pb2.Engine(
            role=engine_pb2.ROLE_PREFILL,
            endpoint="http://linked.test:8000",
            models=["m"],
            build=engine_pb2.EngineBuild(
                connector=engine_pb2.EngineBuild.CONNECTOR_KVPLANE,
                connector_version="0.1.0",
                vllm_version="0.32.0",
            ),
            nixl=engine_pb2.NixlAddress(host="linked.test", port=5600, engine_id="x"),
            layout=engine_pb2.KvLayout(block_size=16, total_blocks=1000),
        ),
        source=Source(),
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(link.run())
        try:
            yield link
        finally:
            await link.aclose()


async def home(found: dict[str, Replica], but: Replica | None = None) -> Replica:
    """The replica that the engine's heartbeats come to."""
    async with asyncio.timeout(20):
        while True:
            for one in found.values():
                if one is but:
                    continue
                async with Plane(one.address) as plane:
                    if "engines/linked" in [each.name async for each in plane.engines.list()]:
                        return one
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("number", "seconds"),
    [(signal.SIGKILL, SOON), (signal.SIGTERM, SOON), (signal.SIGSTOP, PATIENCE)],
)
async def test_engine_moves_to_another_replica(number: signal.Signals, seconds: float) -> None:
    """An engine's heartbeats come to another replica, whatever becomes of the one they came to."""
    async with replicas() as found, linked(addresses(found)) as link:
        first = await home(found)
        await go(first, number)
        with within(seconds):
            assert await home(found, but=first) is not first
        async with asyncio.timeout(5):
            while True:
                if link.connected:
                    return
                await asyncio.sleep(0.02)


async def test_graceful_stop_is_no_trouble_to_an_engine(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An engine whose replica stops in good order moves without a frame that fails."""
    async with replicas() as found, linked(addresses(found)):
        first = await home(found)
        with caplog.at_level(logging.INFO):
            await go(first, signal.SIGTERM)
            await home(found, but=first)
        assert any("ends the stream" in one.message for one in caplog.records)
        assert not [one for one in caplog.records if one.levelno >= logging.WARNING]
