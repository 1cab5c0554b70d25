import asyncio
from collections.abc import AsyncIterator

import pytest

from kvplane_services.adapters.etcd.backend import Changed, Deleted, EtcdBackend, PutOp
from kvplane_services.adapters.etcd.config import EtcdConfig
from kvplane_services.clock import SystemClock
from kvplane_services.errors import Unavailable
from tests.support.etcd import EtcdNode
from tests.support.etcd_backends import MakeBackend

UNKNOWN = 987_654_321


async def each(*leases: int) -> AsyncIterator[int]:
    """Names etcd leases, and no more."""
    for lease in leases:
        yield lease


async def every(seconds: float, lease: int) -> AsyncIterator[int]:
    """Names an etcd lease again and again."""
    while True:
        yield lease
        await SystemClock().sleep(seconds)


async def read_on(answers: AsyncIterator[tuple[int, int]]) -> None:
    """Reads until the stream fails."""
    async for _ in answers:
        pass


async def test_renewal_tells_the_seconds_that_remain(backend: EtcdBackend) -> None:
    """Each named etcd lease is answered, in order: 0 for one that does not exist."""
    short, long = await backend.grant(20), await backend.grant(90)

    renewed = [answer async for answer in backend.keep_alive(each(short, UNKNOWN, long, short))]

    assert renewed == [(short, 20), (UNKNOWN, 0), (long, 90), (short, 20)]


async def test_many_leases_on_one_stream(backend: EtcdBackend) -> None:
    """Hundreds of renewals are answered, each once."""
    leases = await asyncio.gather(*(backend.grant(60) for _ in range(300)))

    renewed = [lease async for lease, _ in backend.keep_alive(each(*leases))]

    assert renewed == leases


async def test_key_goes_with_its_lease(backend: EtcdBackend, prefix: bytes) -> None:
    """A key on an etcd lease that nobody renews vanishes, and watches say so."""
    lease = await backend.grant(1)
    put = await backend.txn([], [PutOp(prefix + b"a", b"", lease)])
    _, found = await backend.get(prefix + b"a")
    assert found is not None
    assert found.lease == lease

    gone: list[Changed | Deleted] = []
    async for batch in backend.watch(prefix, start_revision=put.header.revision + 1):
        gone.extend(batch.events)
        if gone:
            break

    [event] = gone
    assert isinstance(event, Deleted)
    assert event.key == prefix + b"a"
    assert [answer async for answer in backend.keep_alive(each(lease))] == [(lease, 0)]


async def test_renewed_lease_keeps_its_key(backend: EtcdBackend, prefix: bytes) -> None:
    """A key stays for as long as its etcd lease is renewed."""
    lease = await backend.grant(2)
    await backend.txn([], [PutOp(prefix + b"a", b"", lease)])
    clock = SystemClock()
    started = clock.now()

    async for _ in backend.keep_alive(every(0.2, lease)):
        if clock.now() - started > 4.5:
            break

    _, found = await backend.get(prefix + b"a")
    assert found is not None


async def test_revoking_deletes_the_keys(backend: EtcdBackend, prefix: bytes) -> None:
    """A revoked etcd lease takes its keys with it, and may be revoked again."""
    lease = await backend.grant(60)
    await backend.txn([], [PutOp(prefix + b"a", b"", lease), PutOp(prefix + b"b", b"")])

    await backend.revoke(lease)
    await backend.revoke(lease)

    left = await backend.range(prefix)
    assert [prefix + b"b"] == [item.key for item in left.items]


async def test_stream_breaks_when_etcd_ends(make: MakeBackend, node: EtcdNode) -> None:
    """Renewals fail when etcd is gone, and go on with a new stream when it is back."""
    backend = make(EtcdConfig((node.endpoint,)))
    lease = await backend.grant(60)
    answers = backend.keep_alive(every(0.05, lease))
    assert await anext(answers) == (lease, 60)

    await asyncio.to_thread(node.kill)
    with pytest.raises(Unavailable):
        await read_on(answers)
    await asyncio.to_thread(node.start)

    assert [answer async for answer in backend.keep_alive(each(lease))] == [(lease, 60)]


async def test_frozen_etcd_is_noticed(make: MakeBackend, node: EtcdNode) -> None:
    """Renewals fail within the allowed silence when etcd stands still with its connections open."""
    backend = make(EtcdConfig((node.endpoint,), silence=2))
    lease = await backend.grant(60)
    answers = backend.keep_alive(every(0.05, lease))
    assert await anext(answers) == (lease, 60)

    node.pause()
    try:
        with pytest.raises(Unavailable):
            await asyncio.wait_for(read_on(answers), 20)
    finally:
        node.resume()


async def test_failure_of_whoever_names_leases_is_raised(backend: EtcdBackend) -> None:
    """The stream ends with the exception of the iterator that feeds it."""
    lease = await backend.grant(60)

    async def broken() -> AsyncIterator[int]:
        yield lease
        raise LookupError

    answers = backend.keep_alive(broken())
    assert await anext(answers) == (lease, 60)
    with pytest.raises(LookupError):
        await anext(answers)


async def test_closing_ends_the_stream(make: MakeBackend, etcd_node: EtcdNode) -> None:
    """Who waits for renewals of a client that is closed is told that etcd is unavailable."""
    backend = make(EtcdConfig((etcd_node.endpoint,)))
    lease = await backend.grant(60)
    answers = backend.keep_alive(every(0.05, lease))
    await anext(answers)

    reading = asyncio.ensure_future(read_on(answers))
    await backend.close()

    with pytest.raises(Unavailable):
        await reading
