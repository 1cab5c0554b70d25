import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from kvplane_services.adapters.etcd.backend import (
    Changed,
    CompactedError,
    Deleted,
    DeleteOp,
    EtcdBackend,
    PutOp,
    WatchBatch,
)
from kvplane_services.adapters.etcd.config import EtcdConfig
from kvplane_services.errors import Unavailable
from tests.contract.etcd_backend.following import Follower, Writer, until
from tests.support.etcd import EtcdNode
from tests.support.etcd_backends import MakeBackend


async def put(backend: EtcdBackend, key: bytes, value: bytes = b"") -> int:
    """Writes a key; returns the revision."""
    return (await backend.txn([], [PutOp(key, value)])).header.revision


async def batch_of(watch: AsyncIterator[WatchBatch]) -> WatchBatch:
    """The next batch with events."""
    async with asyncio.timeout(20):
        while True:
            batch = await anext(watch)
            if batch.events:
                return batch


async def read_on(watch: AsyncIterator[WatchBatch]) -> None:
    """Reads until the watch fails."""
    async for _ in watch:
        pass


def watching(backend: EtcdBackend, prefix: bytes, start_revision: int) -> Any:
    """A watch that is closed at the end of a block."""
    return aclosing(backend.watch(prefix, start_revision=start_revision))


async def test_first_batch_comes_at_once(backend: EtcdBackend, prefix: bytes) -> None:
    """A watch that stands says so, though there is nothing new."""
    revision = await put(backend, prefix + b"a")

    async with watching(backend, prefix, revision + 1) as watch, asyncio.timeout(20):
        first = await anext(watch)

    header, _ = await backend.get(prefix)
    assert first == WatchBatch(type(header)(header.cluster_id, revision), ())


async def test_changes_come_in_order(backend: EtcdBackend, prefix: bytes) -> None:
    """Writes and deletions from a revision on are delivered: those made before the watch too."""
    await put(backend, prefix + b"a", b"0")
    start = await put(backend, prefix + b"a", b"1")
    deleted = await backend.txn([], [DeleteOp(prefix + b"a")])

    async with watching(backend, prefix, start) as watch:
        events = list((await batch_of(watch)).events)
        again = await put(backend, prefix + b"a", b"2")
        while len(events) < 3:
            events.extend((await batch_of(watch)).events)

    assert [
        (event.item.value, event.item.mod_revision) if isinstance(event, Changed) else event
        for event in events
    ] == [(b"1", start), Deleted(prefix + b"a", deleted.header.revision), (b"2", again)]


async def test_a_transaction_is_one_batch(backend: EtcdBackend, prefix: bytes) -> None:
    """What was written at once is delivered at once."""
    start = await put(backend, prefix)

    async with watching(backend, prefix, start + 1) as watch:
        await anext(watch)
        await backend.txn([], [PutOp(prefix + b"%03d" % n, b"") for n in range(100)])
        batch = await batch_of(watch)

    assert len(batch.events) == 100
    assert batch.header.revision == start + 1


async def test_other_keys_are_not_watched(backend: EtcdBackend, prefix: bytes) -> None:
    """Neighbours of the prefix make no events."""
    start = await put(backend, prefix)

    async with watching(backend, prefix, start + 1) as watch:
        await put(backend, prefix[:-1])
        await put(backend, prefix[:-1] + b"0")
        last = await put(backend, prefix + b"a")
        batch = await batch_of(watch)

    [event] = batch.events
    assert isinstance(event, Changed)
    assert (event.item.key, event.item.mod_revision) == (prefix + b"a", last)


async def test_batches_larger_than_a_message(backend: EtcdBackend, prefix: bytes) -> None:
    """A backlog of 15 MB is delivered whole, in order, each change once."""
    start = await put(backend, prefix)
    for number in range(25):
        values = [PutOp(prefix + b"%d" % n, b"%d " % number * 30_000) for n in range(10)]
        await backend.txn([], values)

    events: list[Changed | Deleted] = []
    async with watching(backend, prefix, start + 1) as watch:
        while len(events) < 250:
            events.extend((await batch_of(watch)).events)

    found = [event.item for event in events if isinstance(event, Changed)]
    assert [(item.mod_revision, item.key) for item in found] == sorted(
        (start + 1 + number, prefix + b"%d" % n) for number in range(25) for n in range(10)
    )


async def test_two_watches(backend: EtcdBackend, prefix: bytes) -> None:
    """Watches are apart: the end of one is not that of another."""
    start = await put(backend, prefix)

    async with watching(backend, prefix, start + 1) as kept:
        await anext(kept)
        async with watching(backend, prefix, start) as ended:
            assert (await batch_of(ended)).header.revision == start
        await put(backend, prefix + b"a")

        assert (await batch_of(kept)).header.revision == start + 1


async def test_silence_is_broken_by_progress(backend: EtcdBackend, prefix: bytes) -> None:
    """Where nothing changes an empty batch comes within 10 seconds, at the revision before."""
    start = await put(backend, prefix)

    async with watching(backend, prefix, start + 1) as watch:
        await anext(watch)
        async with asyncio.timeout(10):
            batch = await anext(watch)

    assert batch.events == ()
    assert batch.header.revision == start


async def test_headers_run_ahead_of_nothing(backend: EtcdBackend, prefix: bytes) -> None:
    """Under load no change comes after a batch whose header has its revision."""
    start = await put(backend, prefix)
    writers = [
        asyncio.ensure_future(Writer(backend, prefix + b"%d" % number).run()) for number in range(8)
    ]
    reached, seen = start, 0
    try:
        async with watching(backend, prefix, start + 1) as watch:
            while seen < 1_000:
                batch = await anext(watch)
                revisions = [
                    event.item.mod_revision for event in batch.events if isinstance(event, Changed)
                ]
                assert all(reached < revision <= batch.header.revision for revision in revisions)
                assert batch.header.revision >= reached
                reached = batch.header.revision
                seen += len(revisions)
    finally:
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)


async def test_compacted_revision(make: MakeBackend, node: EtcdNode) -> None:
    """Changes that etcd has dropped are not passed over in silence."""
    backend = make(EtcdConfig((node.endpoint,)))
    start = await put(backend, b"/a")
    for _ in range(5):
        await put(backend, b"/a")
    kept = await asyncio.to_thread(node.compact)

    with pytest.raises(CompactedError) as caught:
        await read_on(backend.watch(b"/", start_revision=start))

    assert start < caught.value.revision <= kept


async def test_deletion_at_the_compacted_revision(make: MakeBackend, node: EtcdNode) -> None:
    """A deletion of the revision that etcd was compacted at may be gone, so that is too old too."""
    backend = make(EtcdConfig((node.endpoint,)))
    await put(backend, b"/a")
    deleted = await backend.txn([], [DeleteOp(b"/a")])
    assert await asyncio.to_thread(node.compact) == deleted.header.revision

    with pytest.raises(CompactedError):
        await read_on(backend.watch(b"/", start_revision=deleted.header.revision))


async def test_lost_history(make: MakeBackend, node: EtcdNode) -> None:
    """A revision that this etcd has never reached is one of a history that it has lost."""
    backend = make(EtcdConfig((node.endpoint,)))
    last = max([await put(backend, b"/a") for _ in range(5)])
    await asyncio.to_thread(node.kill)
    node.wipe()
    await asyncio.to_thread(node.start)

    with pytest.raises(CompactedError):
        await read_on(backend.watch(b"/", start_revision=last + 1))


async def test_watch_goes_on_after_a_restart(make: MakeBackend, node: EtcdNode) -> None:
    """Followed over a kill and a restart, no change is lost and none comes twice."""
    backend = make(EtcdConfig((node.endpoint,), timeout=1, try_timeout=1))
    start = (await backend.connect()).revision
    writer = Writer(backend, b"/k/count")
    follower = Follower(backend, b"/k/", start_revision=start + 1)
    tasks = [asyncio.ensure_future(task.run()) for task in (writer, follower)]
    try:
        await until(lambda: len(follower.events) > 20)
        await asyncio.to_thread(node.kill)
        await until(lambda: writer.failures > 0)
        await asyncio.to_thread(node.start)
        resumed = len(writer.written)
        await until(lambda: len(writer.written) > resumed + 20)
        writer.stop()
        await tasks[0]
        await until(lambda: follower.values()[-1] == writer.written[-1])
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    assert follower.watches >= 2
    assert [b"%d" % (n + 1) for n in range(len(writer.written))] == follower.values()


async def test_frozen_etcd_is_noticed(make: MakeBackend, node: EtcdNode) -> None:
    """A watch breaks within the allowed silence when etcd stands still, its connections open."""
    backend = make(EtcdConfig((node.endpoint,), silence=2))
    watch = backend.watch(b"/", start_revision=1)
    await anext(watch)

    node.pause()
    try:
        with pytest.raises(Unavailable):
            await asyncio.wait_for(read_on(watch), 20)
    finally:
        node.resume()


async def test_closing_ends_watches(make: MakeBackend, etcd_node: EtcdNode) -> None:
    """Who watches through a client that is closed is told that etcd is unavailable."""
    backend = make(EtcdConfig((etcd_node.endpoint,)))
    header = await backend.connect()
    watch = backend.watch(b"/nothing/", start_revision=header.revision + 1)
    await anext(watch)

    reading = asyncio.ensure_future(read_on(watch))
    await backend.close()

    with pytest.raises(Unavailable):
        await reading
