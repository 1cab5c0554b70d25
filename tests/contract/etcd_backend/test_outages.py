import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from kvplane_services.adapters.etcd.backend import Compare, EtcdBackend, PutOp
from kvplane_services.adapters.etcd.config import EtcdConfig
from kvplane_services.clock import SystemClock
from kvplane_services.errors import Unavailable
from tests.contract.etcd_backend.following import Follower, Writer, until
from tests.support.etcd import EtcdNode, free_port
from tests.support.etcd_backends import MakeBackend
from tests.support.etcd_cluster import EtcdCluster, running_cluster


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[EtcdCluster]:
    """A cluster for all tests of this module."""
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(three_nodes: EtcdCluster) -> Iterator[EtcdCluster]:
    """The cluster, whole before and after each test."""
    three_nodes.start()
    yield three_nodes
    for node in three_nodes.nodes:
        if node.running:
            node.resume()


@asynccontextmanager
async def load(
    backend: EtcdBackend, prefix: bytes, start_revision: int
) -> AsyncIterator[tuple[Writer, Follower]]:
    """Writes and follows inside of the block; what was written was then delivered once each."""
    writer = Writer(backend, prefix + b"count")
    follower = Follower(backend, prefix, start_revision=start_revision)
    writing, following = (asyncio.ensure_future(task.run()) for task in (writer, follower))
    try:
        await until(lambda: len(follower.events) > 20)
        yield writer, follower
        more = len(writer.written) + 20
        await until(lambda: len(writer.written) > more)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        # A write that was in flight may have been done.
        await until(lambda: len(follower.events) >= len(writer.written))
    finally:
        for task in (writing, following):
            task.cancel()
        await asyncio.gather(writing, following, return_exceptions=True)
    assert [b"%d" % (n + 1) for n in range(len(follower.events))] == follower.values()
    assert writer.written == follower.values()[: len(writer.written)]


async def test_leader_is_killed(
    make_for_several: MakeBackend, cluster: EtcdCluster, prefix: bytes
) -> None:
    """Over a kill of the leader no change is lost and none comes twice, whoever was in use."""
    backend = make_for_several(EtcdConfig(cluster.endpoints))
    start = (await backend.connect()).revision + 1

    async with load(backend, prefix, start):
        leader = await asyncio.to_thread(cluster.leader)
        await asyncio.to_thread(leader.kill)
        await asyncio.to_thread(cluster.leader)


async def test_node_in_use_is_killed(
    make_for_several: MakeBackend, cluster: EtcdCluster, prefix: bytes
) -> None:
    """Reads do not fail, and writes at most once, when a node goes that does not lead."""
    [node, other] = await followers(cluster)
    backend = make_for_several(EtcdConfig((node.endpoint, other.endpoint)))
    start = (await backend.connect()).revision + 1

    async with load(backend, prefix, start) as (writer, _):
        await asyncio.to_thread(node.kill)
        await backend.get(prefix)
        written = len(writer.written)
        await until(lambda: len(writer.written) > written)
        await asyncio.to_thread(node.start)
        await asyncio.to_thread(other.kill)
        await backend.get(prefix)

    # Each kill may cut a write short, and one more that begins before the other node is in use.
    assert writer.failures <= 4


async def test_node_in_use_freezes(
    make_for_several: MakeBackend, cluster: EtcdCluster, prefix: bytes
) -> None:
    """Calls go to another node when theirs stands still with its connections open."""
    [node, other] = await followers(cluster)
    backend = make_for_several(
        EtcdConfig((node.endpoint, other.endpoint), try_timeout=1, silence=2)
    )
    start = (await backend.connect()).revision + 1

    async with load(backend, prefix, start) as (_, follower):
        for frozen in (node, other):
            frozen.pause()
            await backend.get(prefix)
            seen = len(follower.events)
            await until(lambda seen=seen: len(follower.events) > seen)  # type: ignore[misc]
            frozen.resume()


async def test_no_quorum(make: MakeBackend, cluster: EtcdCluster, prefix: bytes) -> None:
    """One node of three answers neither reads nor writes, and says why; later all is well."""
    [node, other] = await followers(cluster)
    backend = make(EtcdConfig((node.endpoint,), timeout=1, try_timeout=1))
    await backend.connect()
    leader = await asyncio.to_thread(cluster.leader)

    leader.kill()
    other.kill()

    await until_refused(backend, "has no leader")
    with pytest.raises(Unavailable, match="has no leader"):
        await backend.txn([], [PutOp(prefix, b"")])
    with pytest.raises(Unavailable):
        await anext(backend.watch(prefix, start_revision=1))
    await asyncio.to_thread(cluster.start)
    assert (await backend.txn([Compare(prefix, 0)], [PutOp(prefix, b"")])).succeeded


async def test_watch_at_a_node_that_is_cut_off(
    make: MakeBackend, cluster: EtcdCluster, prefix: bytes
) -> None:
    """A watch breaks when its node no longer hears from the others."""
    [node, other] = await followers(cluster)
    leader = await asyncio.to_thread(cluster.leader)
    backend = make(EtcdConfig((node.endpoint,)))
    header = await backend.connect()
    watch = backend.watch(prefix, start_revision=header.revision + 1)
    await anext(watch)

    async def read_on() -> None:
        async for _ in watch:
            pass

    leader.pause()
    other.pause()
    with pytest.raises(Unavailable):
        await asyncio.wait_for(read_on(), 30)


async def test_dead_endpoints_are_passed_over(
    make_for_several: MakeBackend, etcd_node: EtcdNode, prefix: bytes
) -> None:
    """One good address is enough, and the others may even be no names."""
    endpoints = (
        f"127.0.0.1:{free_port()}",
        "no-such-host.invalid:2379",
        f"127.0.0.1:{free_port()}",
        etcd_node.endpoint,
    )
    for _ in range(5):  # The order is shuffled.
        backend = make_for_several(EtcdConfig(endpoints))
        await backend.connect()
        assert (await backend.txn([], [PutOp(prefix, b"")])).succeeded


async def test_etcd_that_starts_late(make: MakeBackend, node: EtcdNode) -> None:
    """A read waits within its timeout for an etcd that is about to start."""
    node.kill()
    backend = make(EtcdConfig((node.endpoint,), timeout=20))

    reading = asyncio.ensure_future(backend.get(b"/a"))
    await SystemClock().sleep(0.5)
    await asyncio.to_thread(node.start)

    _, found = await reading
    assert found is None


async def test_writes_are_tried_once(make: MakeBackend, node: EtcdNode) -> None:
    """A write that fails is not repeated behind the caller's back."""
    backend = make(EtcdConfig((node.endpoint,), try_timeout=0.5, timeout=5))
    await backend.connect()

    node.pause()
    with pytest.raises(Unavailable):
        await backend.txn([], [PutOp(b"/a", b"")])
    node.resume()

    # It may arrive late, but only once.
    await SystemClock().sleep(1)
    header, found = await backend.get(b"/a")
    if found is not None:
        assert found.create_revision == found.mod_revision == header.revision


async def test_closed_client(make: MakeBackend, node: EtcdNode) -> None:
    """Who waits for an answer of a client that is closed waits no longer, nor do those who come."""
    backend = make(EtcdConfig((node.endpoint,), timeout=60, try_timeout=60))
    await backend.connect()
    node.pause()
    waiting = [
        asyncio.ensure_future(backend.get(b"/a")),
        asyncio.ensure_future(backend.txn([], [PutOp(b"/a", b"")])),
    ]
    await SystemClock().sleep(0.2)

    await backend.close()
    await backend.close()

    async with asyncio.timeout(20):
        for call in (*waiting, backend.get(b"/a"), backend.grant(60)):
            with pytest.raises(Unavailable, match="closed"):
                await call
    with pytest.raises(Unavailable, match="closed"):
        await anext(backend.watch(b"/", start_revision=1))


async def followers(cluster: EtcdCluster) -> list[EtcdNode]:
    """The nodes that do not lead."""
    leader = await asyncio.to_thread(cluster.leader)
    return [node for node in cluster.nodes if node is not leader]


async def until_refused(backend: EtcdBackend, reason: str) -> None:
    """Reads until it fails for a reason."""
    async with asyncio.timeout(30):
        while True:
            try:
                await backend.get(b"/")
            except Unavailable as error:
                if reason in error.message:
                    return
