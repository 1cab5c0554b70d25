import asyncio

import pytest

from kvplane_services.adapters.etcd.backend import (
    Compare,
    DeleteOp,
    EtcdBackend,
    KeyValue,
    LeaseGone,
    PutOp,
)
from kvplane_services.adapters.etcd.config import EtcdConfig
from tests.support.etcd import EtcdNode
from tests.support.etcd_backends import MakeBackend

# Operations that one transaction may hold.
BATCH = 100


async def fill(backend: EtcdBackend, prefix: bytes, count: int) -> list[bytes]:
    """Writes many keys; returns them in order."""
    keys = [prefix + b"%05d" % number for number in range(count)]
    for first in range(0, count, BATCH):
        await backend.txn([], [PutOp(key, b"v") for key in keys[first : first + BATCH]])
    return keys


async def test_connecting_tells_the_cluster(make: MakeBackend, etcd_node: EtcdNode) -> None:
    """The header names the cluster and a revision of it."""
    backend = make(EtcdConfig((etcd_node.endpoint,)))

    connected = await backend.connect()

    header, _ = await backend.get(b"/any")
    assert connected.cluster_id == header.cluster_id != 0
    assert 1 <= connected.revision <= header.revision


async def test_absent_key(backend: EtcdBackend, prefix: bytes) -> None:
    """There is nothing under a key that was never written."""
    _, found = await backend.get(prefix + b"a")

    assert found is None


async def test_written_key_is_read_with_its_numbers(backend: EtcdBackend, prefix: bytes) -> None:
    """A key has the revisions of the transactions that made and last wrote it."""
    made = await backend.txn([], [PutOp(prefix + b"a", b"1")])
    written = await backend.txn([], [PutOp(prefix + b"a", b"2")])

    header, found = await backend.get(prefix + b"a")

    assert found == KeyValue(
        prefix + b"a", b"2", made.header.revision, written.header.revision, lease=0
    )
    assert header.revision >= written.header.revision


async def test_any_bytes_are_keys_and_values(backend: EtcdBackend, prefix: bytes) -> None:
    """Zeros, high bytes and empty values come back as they were written."""
    keys = [prefix + bytes([byte]) for byte in (0, 10, 0x7F, 0x80, 0xFF)]

    await backend.txn([], [PutOp(key, key[-1:] * byte) for byte, key in enumerate(keys)])

    found = await backend.range(prefix)
    assert [(item.key, item.value) for item in found.items] == [
        (key, key[-1:] * byte) for byte, key in enumerate(keys)
    ]


async def test_absence_can_be_demanded(backend: EtcdBackend, prefix: bytes) -> None:
    """Revision 0 holds once, while the key does not exist."""
    create = ([Compare(prefix + b"a", 0)], [PutOp(prefix + b"a", b"1")])

    first = await backend.txn(*create)
    second = await backend.txn(*create)

    assert (first.succeeded, second.succeeded) == (True, False)


async def test_refused_transaction_tells_what_is_there(backend: EtcdBackend, prefix: bytes) -> None:
    """If one compare fails nothing is done, and those compared keys that exist are returned."""
    a, b, c = (prefix + name for name in (b"a", b"b", b"c"))
    made = await backend.txn([], [PutOp(a, b"1"), PutOp(c, b"3")])
    right = made.header.revision

    refused = await backend.txn(
        [Compare(a, right), Compare(b, 0), Compare(c, right - 1)],
        [PutOp(a, b"x"), PutOp(b, b"x"), DeleteOp(c)],
    )

    assert not refused.succeeded
    assert [(item.key, item.value, item.mod_revision) for item in refused.found] == [
        (a, b"1", right),
        (c, b"3", right),
    ]
    left = await backend.range(prefix)
    assert left.items == refused.found


async def test_deletions_tell_whether_there_was_a_key(backend: EtcdBackend, prefix: bytes) -> None:
    """Each deletion is answered in its place, whatever writes stand between."""
    await backend.txn([], [PutOp(prefix + b"b", b"")])

    done = await backend.txn(
        [],
        [
            DeleteOp(prefix + b"a"),
            PutOp(prefix + b"new", b""),
            DeleteOp(prefix + b"b"),
            DeleteOp(prefix + b"c"),
        ],
    )

    assert done.deleted == (False, True, False)
    left = await backend.range(prefix)
    assert [prefix + b"new"] == [item.key for item in left.items]


async def test_unknown_lease_refuses_the_whole_transaction(
    backend: EtcdBackend, prefix: bytes
) -> None:
    """A write on an etcd lease that does not exist leaves the others undone too."""
    with pytest.raises(LeaseGone):
        await backend.txn(
            [], [PutOp(prefix + b"a", b"1"), PutOp(prefix + b"b", b"2", lease=987_654_321)]
        )

    assert (await backend.range(prefix)).items == ()


async def test_range_takes_as_many_pages_as_there_are(backend: EtcdBackend, prefix: bytes) -> None:
    """Thousands of keys come in the order of their bytes, without their neighbours."""
    keys = await fill(backend, prefix, 2_500)
    await backend.txn([], [PutOp(prefix[:-1], b""), PutOp(prefix[:-1] + b"0", b"")])

    found = await backend.range(prefix)

    assert keys == [item.key for item in found.items]


async def test_pages_are_parts_of_a_range(backend: EtcdBackend, prefix: bytes) -> None:
    """What is written while pages are read is in none; of no keys there is an empty one."""
    keys = await fill(backend, prefix, 2_500)

    pages = []
    async for page in backend.pages(prefix):
        pages.append(page)
        await backend.txn([], [PutOp(keys[-1], b"new"), PutOp(prefix + b"~", b"new")])

    assert len(pages) > 1
    assert len({page.header.revision for page in pages}) == 1
    items = [item for page in pages for item in page.items]
    assert keys == [item.key for item in items]
    assert items[-1].value == b"v"
    [empty] = [page async for page in backend.pages(prefix + b"none")]
    assert empty.items == ()


async def test_range_of_all_keys(backend: EtcdBackend, prefix: bytes) -> None:
    """The empty prefix is that of every key, and one of the highest bytes has an end."""
    await backend.txn([], [PutOp(prefix, b""), PutOp(b"\xff\xff" + prefix, b"")])

    everything = await backend.range(b"")
    highest = await backend.range(b"\xff\xff")

    assert {prefix, b"\xff\xff" + prefix} <= {item.key for item in everything.items}
    assert {b"\xff\xff"} == {item.key[:2] for item in highest.items}


async def test_range_is_of_one_revision(backend: EtcdBackend, prefix: bytes) -> None:
    """The first and the last of many pages were read as of the same moment."""
    keys = await fill(backend, prefix, 2_100)
    ends = (keys[0], keys[-1])
    done = asyncio.Event()

    async def write() -> None:
        count = 0
        while not done.is_set():
            count += 1
            await backend.txn([], [PutOp(key, b"%d" % count) for key in ends])

    writing = asyncio.ensure_future(write())
    try:
        found = [await backend.range(prefix) for _ in range(10)]
    finally:
        done.set()
        await writing

    assert all(read.items[0].value == read.items[-1].value for read in found)
    assert all(item.mod_revision <= read.header.revision for read in found for item in read.items)
    assert found[0].header.revision < found[-1].header.revision
