"""The store on real etcds that fail: nothing is lost, nothing comes twice, all comes back."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from kvplane_services.adapters.etcd.config import EtcdConfig
from kvplane_services.adapters.etcd.store import EtcdStore
from kvplane_services.clock import SystemClock
from kvplane_services.errors import Unavailable
from kvplane_services.store.model import Put
from tests.integration.etcd.replicas import PREFIX, Replica, agree, counting, following, until
from tests.support.etcd import EtcdNode
from tests.support.etcd_backends import BACKENDS, MakeBackend
from tests.support.etcd_cluster import running_cluster
from tests.support.etcd_stores import running_store
from tests.support.tcp_proxy import TcpProxies

# Opens a store over the endpoints that are named.
Open = Callable[..., Awaitable[EtcdStore]]
Join = Callable[..., Awaitable[Replica]]


@pytest.fixture(params=[pytest.param(make, id=name) for name, make in BACKENDS.items()])
async def open_store(request: pytest.FixtureRequest) -> AsyncIterator[Open]:
    make: MakeBackend = request.param
    async with AsyncExitStack() as stack:

        async def open_one(*endpoints: str) -> EtcdStore:
            config = EtcdConfig(endpoints, timeout=3, try_timeout=1, silence=3)
            return await stack.enter_async_context(running_store(make(config), prefix=PREFIX))

        yield open_one


@pytest.fixture
async def join(open_store: Open) -> AsyncIterator[Join]:
    """Opens a store and follows it."""
    async with AsyncExitStack() as stack:

        async def join_one(*endpoints: str) -> Replica:
            return await stack.enter_async_context(following(await open_store(*endpoints)))

        yield join_one


async def test_restart_with_data(join: Join, open_store: Open, node: EtcdNode) -> None:
    """Over a restart of etcd readers are told every change once, and nothing starts over."""
    one, other = await join(node.endpoint), await join(node.endpoint)
    anchor = await one.store.anchors.open(30.0)
    await one.table.put("anchored", "1", anchor=anchor)
    lost = asyncio.ensure_future(anext(one.store.anchors.lost()))

    async with counting(one, other) as counters:
        await asyncio.to_thread(node.kill)
        await until(lambda: not one.store.reachable and not other.store.reachable)
        await asyncio.to_thread(node.start)

    held = await agree(await open_store(node.endpoint), one, other)
    assert held["anchored"] == "1"
    counted = [number for counter in counters for number in counter.counted]
    assert len(set(counted)) == len(counted)
    assert one.follower.resets == other.follower.resets == 0
    assert one.store.reachable
    assert not lost.done()
    lost.cancel()


async def test_restart_without_data(join: Join, open_store: Open, node: EtcdNode) -> None:
    """A store that lost its data is listed anew; everything can be put back, numbers grow."""
    one, other = await join(node.endpoint), await join(node.endpoint)
    for number in range(50):
        await one.table.put(f"{number}", "before")
    token = await one.store.sequence("tokens").next()
    anchor = await one.store.anchors.open(30.0)
    lost = one.store.anchors.lost()

    await asyncio.to_thread(node.kill)
    assert len((await one.table.list()).items) == 50
    node.wipe()
    await asyncio.to_thread(node.start)

    await until(lambda: one.follower.values == other.follower.values == {})
    assert await asyncio.wait_for(anext(lost), 30) == anchor
    assert await other.store.sequence("tokens").next() > token
    again = await one.store.anchors.open(30.0)
    await one.table.commit([Put(f"{n}", "back", 0, again) for n in range(50)])
    held = await agree(await open_store(node.endpoint), one, other)
    assert held == {f"{n}": "back" for n in range(50)}
    assert one.follower.resets == 1


async def test_etcd_stands_still(join: Join, open_store: Open, node: EtcdNode) -> None:
    """For 20 s etcd answers nothing: reads go on, callers are told soon, and all comes back."""
    one, other = await join(node.endpoint), await join(node.endpoint)
    anchors = [await one.store.anchors.open(ttl) for ttl in (5.0, 60.0)]
    for name, anchor in zip(("short", "long"), anchors, strict=True):
        await one.table.put(name, "1", anchor=anchor)
    gone: set[str] = set()
    lost = asyncio.ensure_future(collect(one.store.anchors.lost(), gone))
    clock = SystemClock()

    async with counting(one, other):
        node.pause()
        stopped = clock.now()
        await until(lambda: not one.store.reachable and not other.store.reachable, seconds=5)
        while clock.now() - stopped < 20:
            assert await one.table.get("long") is not None
            assert not one.store.reachable
            await asyncio.sleep(0.1)
        node.resume()
        await until(lambda: one.store.reachable and other.store.reachable, seconds=10)

    held = await agree(await open_store(node.endpoint), one, other)
    assert held["long"] == "1"
    # It may have lapsed while nobody could renew it: then its keeper is told.
    await until(lambda: gone == (set() if "short" in held else {anchors[0]}), seconds=5)
    assert one.follower.resets == other.follower.resets == 0
    lost.cancel()


async def test_compaction_while_a_process_is_cut_off(
    join: Join, open_store: Open, node: EtcdNode, proxies: TcpProxies
) -> None:
    """A process that missed more than etcd remembers starts over, and has what is there."""
    proxy = proxies.to(node.port)
    one, other = await join(node.endpoint), await join(proxy.target)
    await one.table.commit([Put(f"{n}", "before") for n in range(20)])
    await until(lambda: len(other.follower.values) == 20)

    proxy.cut()
    await until(lambda: not other.store.reachable, seconds=15)
    await one.table.put("0", "after")
    for number in range(10, 20):
        await one.table.delete(f"{number}")
    await asyncio.to_thread(node.compact)
    await one.table.put("1", "after")
    assert len((await other.table.list()).items) == 20
    proxy.mend()

    held = await agree(await open_store(node.endpoint), one, other)
    assert held == {"0": "after", "1": "after"} | {f"{n}": "before" for n in range(2, 10)}
    assert other.follower.resets == 1
    assert one.follower.resets == 0


async def test_a_process_is_cut_off(
    join: Join, open_store: Open, node: EtcdNode, proxies: TcpProxies
) -> None:
    """What happened meanwhile is told afterwards, once and in order, and attempts are jittered."""
    proxy = proxies.to(node.port)
    one, other = await join(node.endpoint), await join(proxy.target)

    async with counting(one, other) as counters:
        proxy.cut()
        await until(lambda: not other.store.reachable, seconds=15)
        counted = len(counters[0].counted)
        await until(lambda: len(counters[0].counted) > counted + 50)
        with pytest.raises(Unavailable):
            await other.table.put("x", "1")
        proxy.mend()

    await agree(await open_store(node.endpoint), one, other)
    numbers = [number for counter in counters for number in counter.counted]
    assert len(set(numbers)) == len(numbers)
    assert other.follower.resets == 0


async def test_a_lease_is_lost(join: Join, open_store: Open, node: EtcdNode) -> None:
    """Whoever keeps an anchor that etcd revoked is told, and puts everything back on a new one."""
    one, other = await join(node.endpoint), await join(node.endpoint)
    anchor = await one.store.anchors.open(3.0)
    await one.table.commit([Put(f"{n}", "1", 0, anchor) for n in range(20)])
    await until(lambda: len(other.follower.values) == 20)
    lost = one.store.anchors.lost()

    await asyncio.to_thread(node.call, "lease/revoke", {"ID": int(anchor, 16)})

    assert await asyncio.wait_for(anext(lost), 10) == anchor
    await until(lambda: other.follower.values == one.follower.values == {})
    again = await one.store.anchors.open(3.0)
    await one.table.commit([Put(f"{n}", "1", 0, again) for n in range(20)])
    held = await agree(await open_store(node.endpoint), one, other)
    assert len(held) == 20
    assert other.follower.resets == 0


# The package etcd3 speaks to one node.
@pytest.mark.parametrize("open_store", [BACKENDS["grpc"]], ids=["grpc"], indirect=True)
async def test_the_leader_is_killed(join: Join, open_store: Open) -> None:
    """Three nodes go on without their leader: processes count on, and all agree."""
    with running_cluster() as cluster:
        one, other = await join(*cluster.endpoints), await join(*reversed(cluster.endpoints))
        anchor = await one.store.anchors.open(15.0)
        await one.table.put("anchored", "1", anchor=anchor)
        async with counting(one, other) as counters:
            for _ in range(2):
                leader = await asyncio.to_thread(cluster.leader)
                await asyncio.to_thread(leader.kill)
                await asyncio.to_thread(cluster.leader)
                counted = [len(counter.counted) for counter in counters]
                await until(
                    lambda counted=counted: all(  # type: ignore[misc]
                        len(c.counted) > before + 5
                        for c, before in zip(counters, counted, strict=True)
                    )
                )
                await asyncio.to_thread(leader.start)

        held = await agree(await open_store(*cluster.endpoints), one, other)
    assert held["anchored"] == "1"
    numbers = [number for counter in counters for number in counter.counted]
    assert len(set(numbers)) == len(numbers)
    assert int(held["count"].partition(" ")[0]) >= max(numbers)
    assert one.follower.resets == other.follower.resets == 0


async def collect(events: AsyncIterator[str], into: set[str]) -> None:
    async for event in events:
        into.add(event)
