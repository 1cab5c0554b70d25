"""Engines at several replicas on a real etcd that fails."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from kvplane_services.adapters.etcd.config import EtcdConfig
from kvplane_services.adapters.etcd.store import EtcdStore
from kvplane_services.adapters.records import ENGINES, HOMES
from kvplane_services.clock import SystemClock
from kvplane_services.engine.answers import HeartbeatOutcome
from kvplane_services.engine.directory import EngineDirectory
from kvplane_services.engine.homes import EngineHomes
from kvplane_services.engine.model import Engine, EngineState
from kvplane_services.engine.registration import DirectoryConfig
from kvplane_services.errors import Unavailable
from tests.integration.etcd.replicas import until
from tests.support.etcd import EtcdNode
from tests.support.etcd_backends import grpc_backend
from tests.support.etcd_stores import running_store
from tests.support.state_values import PLANE_VERSION, engine_of
from tests.support.tcp_proxy import TcpProxies

TTL = 4.0
CONFIG = DirectoryConfig(ttl=TTL, min_ttl=1.0, heartbeat_interval=0.2, load_interval=0.2)


class Replica:
    """A replica's directory, on its own way to etcd."""

    def __init__(self, name: str, store: EtcdStore) -> None:
        clock = SystemClock()
        self.store = store
        self.homes = EngineHomes(
            replica=name, table=store.table(HOMES), anchors=store.anchors, clock=clock
        )
        self.directory = EngineDirectory(
            table=store.table(ENGINES),
            epochs=store.sequence("epochs"),
            homes=self.homes,
            anchors=store.anchors,
            reachable=lambda: store.reachable,
            clock=clock,
            plane_version=PLANE_VERSION,
            config=CONFIG,
        )

    def state(self, engine_id: str = "d0") -> EngineState | None:
        """The state of an engine as this replica tells it."""
        engine = self.directory.find(engine_id)
        return engine.state if engine else None


@asynccontextmanager
async def running_replica(name: str, endpoint: str) -> AsyncIterator[Replica]:
    """Runs a replica inside of the block."""
    backend = grpc_backend(EtcdConfig((endpoint,), timeout=3, try_timeout=1, silence=3))
    async with running_store(backend, tables=(ENGINES, HOMES)) as store:
        replica = Replica(name, store)
        loops = [asyncio.ensure_future(part.run()) for part in (replica.homes, replica.directory)]
        try:
            yield replica
            for loop in loops:
                assert not loop.done(), loop
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)


class Beating:
    """An engine that sends heartbeats to a replica, and to the next one where that refuses."""

    def __init__(self, engine: Engine, *replicas: Replica) -> None:
        self.engine = engine
        self.replicas = list(replicas)
        self.slowest = 0.0

    async def run(self) -> None:
        clock = SystemClock()
        while True:
            began = clock.now()
            try:
                answer = await self.replicas[0].directory.heartbeat(
                    self.engine.engine_id, self.engine.epoch
                )
                assert answer.outcome is HeartbeatOutcome.RENEWED
                self.slowest = max(self.slowest, clock.now() - began)
            except Unavailable:
                self.replicas.append(self.replicas.pop(0))
            await asyncio.sleep(0.2)


@asynccontextmanager
async def beating(engine: Engine, *replicas: Replica) -> AsyncIterator[Beating]:
    """Beats inside of the block."""
    beating = Beating(engine, *replicas)
    task = asyncio.ensure_future(beating.run())
    try:
        yield beating
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def pair(stack: AsyncExitStack, *endpoints: str) -> tuple[Replica, Replica]:
    """Two replicas."""
    one, two = [
        await stack.enter_async_context(running_replica(f"replica-{number}", endpoint))
        for number, endpoint in enumerate(endpoints)
    ]
    return one, two


async def test_engines_move_between_replicas(stack: AsyncExitStack, node: EtcdNode) -> None:
    """A registration goes on at another replica, which the first learns of by its watch."""
    one, two = await pair(stack, node.endpoint, node.endpoint)
    engine = (await one.directory.register(engine_of())).engine
    answer = await two.directory.heartbeat("d0", engine.epoch)
    assert answer.outcome is HeartbeatOutcome.RENEWED
    assert answer.ttl == TTL
    await until(lambda: one.homes.elsewhere("d0"))

    async with beating(engine, two):
        await asyncio.sleep(2 * TTL)
        assert one.state() is two.state() is EngineState.ACTIVE
    await until(lambda: one.state() is two.state() is EngineState.LOST)


async def test_an_etcd_that_lost_its_data(stack: AsyncExitStack, node: EtcdNode) -> None:
    """Both homes put their engines back; nobody registers again."""
    one, two = await pair(stack, node.endpoint, node.endpoint)
    first = (await one.directory.register(engine_of("d0"))).engine
    second = (await two.directory.register(engine_of("d1"))).engine

    async with beating(first, one), beating(second, two):
        await asyncio.to_thread(node.kill)
        await until(lambda: not one.store.reachable)
        node.wipe()
        await asyncio.to_thread(node.start)
        async with running_replica("replica-2", node.endpoint) as fresh:
            await until(lambda: fresh.state("d0") is fresh.state("d1") is EngineState.ACTIVE)
            epochs = [fresh.directory.get(engine_id).epoch for engine_id in ("d0", "d1")]
            assert epochs == [first.epoch, second.epoch]
            assert fresh.homes.elsewhere("d0")
        assert (await one.directory.register(engine_of("d2"))).engine.epoch > second.epoch


async def test_an_etcd_that_stands_still(stack: AsyncExitStack, node: EtcdNode) -> None:
    """Heartbeats are answered all the time, and every engine is there afterwards."""
    one, two = await pair(stack, node.endpoint, node.endpoint)
    engine = (await one.directory.register(engine_of())).engine

    async with beating(engine, one) as beats:
        node.pause()
        await asyncio.sleep(3 * TTL)
        with pytest.raises(Unavailable):
            await two.directory.register(engine_of("d1"))
        node.resume()
        await until(lambda: one.store.reachable and two.store.reachable)
        async with running_replica("replica-2", node.endpoint) as fresh:
            await until(lambda: fresh.state() is EngineState.ACTIVE)
            assert fresh.directory.get("d0").epoch == engine.epoch
    assert beats.slowest < 1.0


async def test_a_replica_that_is_cut_off(
    stack: AsyncExitStack, node: EtcdNode, proxies: TcpProxies
) -> None:
    """Its engine moves and is never called lost, whatever the replica believes meanwhile."""
    proxy = proxies.to(node.port)
    one, two = await pair(stack, proxy.target, node.endpoint)
    engine = (await one.directory.register(engine_of())).engine

    async with running_replica("replica-2", node.endpoint) as watcher:
        await until(lambda: watcher.state() is EngineState.ACTIVE)
        proxy.cut()
        async with beating(engine, two):
            await until(lambda: one.state() is EngineState.LOST)
            proxy.mend()
            await until(lambda: one.state() is EngineState.ACTIVE)
            for _ in range(20):
                assert watcher.state() is two.state() is EngineState.ACTIVE
                await asyncio.sleep(0.1)
            assert one.homes.elsewhere("d0")
