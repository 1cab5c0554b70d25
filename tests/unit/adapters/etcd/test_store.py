"""The etcd store over the double of etcd: what its copies do over faults."""

import asyncio
import logging
from collections.abc import AsyncIterator
from unittest.mock import ANY

import pytest

from kvplane_services.adapters.etcd.backend import DeleteOp, PutOp
from kvplane_services.adapters.etcd.store import EtcdStore
from kvplane_services.adapters.etcd.table import EtcdTable
from kvplane_services.errors import Conflict, TooLarge, Unavailable
from kvplane_services.store.feeds import TableFeed
from kvplane_services.store.journal import Journal
from kvplane_services.store.model import Event, Put, Removed, Reset, Synced, TableSpec, Upserted
from tests.support.clock import FakeClock
from tests.support.etcd_stores import running_store
from tests.support.fake_etcd import FakeEtcd
from tests.support.store_values import TEXTS

PREFIX = "/kvplane/test/"


def decode(data: bytes) -> str:
    if data.startswith(b"bad"):
        raise ValueError("bad")
    return data.decode()


TABLE = TableSpec("texts", str, str.encode, decode)


@pytest.fixture
async def store(etcd: FakeEtcd, clock: FakeClock) -> AsyncIterator[EtcdStore]:
    async with running_store(etcd.client(), prefix=PREFIX, tables=(TABLE,), clock=clock) as store:
        await clock.advance(0)
        yield store


@pytest.fixture
def table(store: EtcdStore) -> EtcdTable[str]:
    return store.table(TABLE)


def place(key: str) -> bytes:
    return f"{PREFIX}texts/{key}".encode()


async def take(events: AsyncIterator[Event[str]], count: int) -> list[Event[str]]:
    return [await asyncio.wait_for(anext(events), 1) for _ in range(count)]


async def state(table: EtcdTable[str]) -> dict[str, str]:
    return {item.key: item.value for item in (await table.list()).items}


async def test_only_known_tables(store: EtcdStore) -> None:
    """A table that the store was not told of cannot be asked for."""
    with pytest.raises(ValueError, match="does not follow"):
        store.table(TableSpec("other", str, str.encode, bytes.decode))


@pytest.mark.parametrize("events_first", [False, True])
async def test_the_writers_own_object_is_held(
    table: EtcdTable[str], etcd: FakeEtcd, clock: FakeClock, *, events_first: bool
) -> None:
    """A value that this process wrote is held once, whichever of event and answer comes first."""
    if not events_first:
        etcd.set(quiet_watches=True)
    watch = table.watch()
    await take(watch, 1)
    value = str(clock.now())

    await table.put("a", value)
    etcd.set(quiet_watches=False)
    await clock.advance(0)

    found = await table.get("a")
    assert found is not None
    assert found.value is value
    (event,) = await take(watch, 1)
    assert isinstance(event, Upserted)
    assert event.value is value


async def test_own_writes_are_read_while_the_watch_lags(
    table: EtcdTable[str], etcd: FakeEtcd, clock: FakeClock
) -> None:
    """Reads have own writes at once; readers are told of all writes in their order, later."""
    watch = table.watch()
    await take(watch, 1)
    etcd.set(quiet_watches=True)
    etcd.write([PutOp(place("theirs"), b"1")])
    first = await table.put("mine", "1")
    etcd.write([PutOp(place("mine"), b"theirs")])
    last = await table.put("mine", "2")

    assert await state(table) == {"mine": "2"}
    late = table.watch()
    assert await take(late, 2) == [
        Upserted("mine", "2", last),
        Synced(await table.revision()),
    ]
    etcd.set(quiet_watches=False)
    await clock.advance(0)

    assert await state(table) == {"mine": "2", "theirs": "1"}
    assert await take(watch, 4) == [
        Upserted("theirs", "1", first - 1),
        Upserted("mine", "1", first),
        Upserted("mine", "theirs", first + 1),
        Upserted("mine", "2", last),
    ]
    assert await take(late, 1) == [Upserted("theirs", "1", first - 1)]


async def test_reads_go_on_without_etcd(
    table: EtcdTable[str], store: EtcdStore, etcd: FakeEtcd, clock: FakeClock
) -> None:
    """While etcd is away the copy is read; writes and questions to etcd fail."""
    await table.put("a", "1")
    etcd.set(away=True)

    with pytest.raises(Unavailable):
        await table.put("a", "2")
    with pytest.raises(Unavailable):
        await table.get("a", current=True)
    assert await state(table) == {"a": "1"}
    assert not store.reachable

    await clock.advance(30)
    etcd.write([PutOp(place("b"), b"1"), DeleteOp(place("a"))])
    etcd.set(away=False)
    await clock.advance(10)
    assert store.reachable
    assert await state(table) == {"b": "1"}


async def test_a_short_break_cuts_no_reader(
    table: EtcdTable[str], etcd: FakeEtcd, clock: FakeClock
) -> None:
    """A watch that broke goes on where it stopped: readers see nothing of it."""
    watch = table.watch()
    await take(watch, 1)
    etcd.set(away=True)
    await clock.advance(1)
    etcd.write([PutOp(place("a"), b"1")])
    etcd.write([DeleteOp(place("a"))])
    etcd.set(away=False)
    await clock.advance(10)

    put, removed = await take(watch, 2)

    assert isinstance(put, Upserted)
    assert isinstance(removed, Removed)
    assert put.revision + 1 == removed.revision


async def test_compaction_during_a_break(
    table: EtcdTable[str], etcd: FakeEtcd, clock: FakeClock
) -> None:
    """Where history is gone everything is listed again, and feeds start over."""
    kept = await table.put("kept", "1")
    await table.put("gone", "1")
    value = (await table.get("kept")).value  # type: ignore[union-attr]
    feed = TableFeed(table=table, clock=clock)()
    await take(feed, 3)
    etcd.set(away=True)
    await clock.advance(1)
    etcd.write([DeleteOp(place("gone")), PutOp(place("new"), b"1")])
    etcd.write([PutOp(place("new"), b"2")])
    etcd.compact()
    etcd.set(away=False)
    await clock.advance(10)

    assert await state(table) == {"kept": "1", "new": "2"}
    reset, first, second, synced = await take(feed, 4)
    assert reset == Reset()
    assert first == Upserted("kept", "1", kept)
    assert isinstance(second, Upserted)
    assert isinstance(synced, Synced)
    assert first.value is value


_LOST = (
    "the store in etcd has lost its data, or is a new one: everything that is alive is put back by "
    "itself, and there is nothing to do"
)


@pytest.mark.parametrize("written_since", [0, 1, 500])
async def test_loss_of_data(
    table: EtcdTable[str],
    store: EtcdStore,
    etcd: FakeEtcd,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
    written_since: int,
) -> None:
    """A store that was set up anew is noticed, also when others have written more than was lost.

    The log is told once, in words that nobody has to be alarmed at.
    """
    for number in range(100):
        await table.put(f"{number}", "1")
    token = await store.sequence("tokens").next()
    anchor = await store.anchors.open(60.0)
    lost = store.anchors.lost()
    feed = TableFeed(table=table, clock=clock)()
    await take(feed, 101)
    etcd.set(away=True)
    await clock.advance(1)
    etcd.lose_data()
    for _ in range(written_since):
        etcd.write([PutOp(place("theirs"), b"1")])
    etcd.set(away=False)
    await clock.advance(30)

    theirs = {"theirs": "1"} if written_since else {}
    assert await state(table) == theirs
    reset, *_, synced = await take(feed, 2 + len(theirs))
    assert reset == Reset()
    assert synced == Synced(await table.revision())
    assert await asyncio.wait_for(anext(lost), 1) == anchor
    assert await store.sequence("tokens").next() > token
    await table.put("0", "back", expected=0)
    await clock.advance(0)
    assert await state(table) == {**theirs, "0": "back"}
    assert [said for _, level, said in caplog.record_tuples if level >= logging.INFO] == [
        "the store is away: the watch broke",
        ANY,
        _LOST,
    ]


async def test_loss_of_data_without_a_break(
    table: EtcdTable[str], etcd: FakeEtcd, clock: FakeClock
) -> None:
    """A write into the new history right after a loss is read when the copy has started over."""
    await table.put("a", "1")
    etcd.lose_data()
    await table.put("a", "2")
    await clock.advance(0)
    await clock.advance(10)

    assert await state(table) == {"a": "2"}


async def test_an_operator_deletes_everything(
    table: EtcdTable[str], etcd: FakeEtcd, clock: FakeClock
) -> None:
    """Deletions by hand are deletions, the store's own keys included."""
    await table.put("a", "1")
    etcd.write([DeleteOp(key) for key in tuple(etcd.items)])
    await clock.advance(0)
    assert await state(table) == {}

    etcd.set(away=True)
    await clock.advance(1)
    etcd.set(away=False)
    await clock.advance(10)
    await table.put("a", "2")
    await clock.advance(0)
    assert await state(table) == {"a": "2"}


async def test_what_cannot_be_read_is_missing(
    table: EtcdTable[str],
    store: EtcdStore,
    etcd: FakeEtcd,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Values and tables of other versions are skipped, said once, and never written over."""
    before = await table.put("a", "1")
    etcd.write([PutOp(place("a"), b"bad"), PutOp(place("b"), b"bad")])
    etcd.write([PutOp(f"{PREFIX}future/x".encode(), b"?"), PutOp(f"{PREFIX}x".encode(), b"?")])
    etcd.write([PutOp(place("%61"), b"another way to write a")])
    await clock.advance(0)

    assert await state(table) == {}
    assert await table.get("a", current=True) is None
    for expected in (0, before):
        with pytest.raises(Conflict):
            await table.put("a", "2", expected=expected)
    assert [record.message for record in caplog.records if "cannot be read" in record.message] == [
        "texts a cannot be read, and is taken for missing, as are others like it: bad"
    ]

    async with running_store(etcd.client(), prefix=PREFIX, tables=(TABLE,), clock=clock) as other:
        assert await state(other.table(TABLE)) == {}


async def test_what_is_too_large(table: EtcdTable[str]) -> None:
    """Values that etcd would not take are refused for what they are."""
    with pytest.raises(TooLarge) as refused:
        await table.put("a", "x" * 1_500_000)
    assert refused.value.metadata == {"key": "a"}
    with pytest.raises(TooLarge) as refused:
        await table.commit([Put(f"{number}", "x" * 100_000) for number in range(20)])
    assert refused.value.metadata == {}


async def test_a_journal_writes_what_is_too_large_at_once_in_parts(
    table: EtcdTable[str],
) -> None:
    """Values that are only too large together are written, and one that is by itself is told."""
    refused: list[str] = []
    journal = Journal(table=table, on_refused=lambda key, _: refused.append(key))
    for number in range(20):
        journal.put(f"{number:02}", "x" * 100_000)
    journal.put("huge", "x" * 1_500_000)

    await journal.flush()

    assert refused == ["huge"]
    assert len(await state(table)) == 20


async def test_opening_without_etcd(etcd: FakeEtcd, clock: FakeClock) -> None:
    """A store cannot be opened while etcd is away."""
    etcd.set(away=True)
    store = EtcdStore(backend=etcd.client(), tables=(TEXTS,), clock=clock)

    with pytest.raises(Unavailable):
        await store.open()
