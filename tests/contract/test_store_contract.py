"""What every store promises. A new adapter joins by adding a parameter to `store`."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from kvplane_services.adapters.memory import MemoryStore
from kvplane_services.clock import SystemClock
from kvplane_services.errors import Conflict, Saturated, WatchTooOld
from kvplane_services.store.feeds import TableFeed
from kvplane_services.store.ports import (
    Event,
    Removed,
    Reset,
    Store,
    Synced,
    Table,
    Upserted,
)
from tests.support.store_values import TEXTS, texts

BACKLOG = 16


def _memory() -> Store:
    return MemoryStore(clock=SystemClock(), backlog=BACKLOG, bookmark_interval=0.05)


@pytest.fixture(params=[pytest.param(_memory, id="memory")])
async def store(request: pytest.FixtureRequest) -> Store:
    make: Callable[[], Store] = request.param
    return make()


@pytest.fixture
def table(store: Store) -> Table[str]:
    return store.table(TEXTS)


async def take(events: AsyncIterator[Event[str]], count: int) -> list[Event[str]]:
    """The next events, bookmarks left out beyond the first Synced."""
    return [await asyncio.wait_for(anext(events), 5) for _ in range(count)]


async def test_get_returns_what_was_put(table: Table[str]) -> None:
    """A value is read back under the revision that its write returned."""
    revision = await table.put("a", "1")

    found = await table.get("a")

    assert found is not None
    assert ("a", "1", revision) == (found.key, found.value, found.revision)


async def test_get_of_an_unknown_key(table: Table[str]) -> None:
    """There is nothing under a key that was never written."""
    assert await table.get("a") is None


async def test_revisions_grow_over_all_tables(store: Store) -> None:
    """Writes to any table of a store get larger and larger revisions."""
    first, second = store.table(texts("first")), store.table(texts("second"))

    revisions = [await first.put("a", "1"), await second.put("a", "1"), await first.put("a", "2")]

    assert sorted(set(revisions)) == revisions
    assert revisions[0] > 0


async def test_list_is_sorted_and_carries_the_last_revision(table: Table[str]) -> None:
    """A listing is by key, and a watch that starts at its revision misses nothing."""
    await table.put("b", "2")
    await table.put("a", "1")

    snapshot = await table.list()
    later = await table.put("c", "3")
    (event,) = await take(table.watch(after=snapshot.revision), 1)

    assert [(item.key, item.value) for item in snapshot.items] == [("a", "1"), ("b", "2")]
    assert Upserted("c", "3", later) == event


async def test_revision_is_that_of_the_last_write(store: Store) -> None:
    """The store's revision counts the writes to all its tables."""
    first, second = store.table(texts("first")), store.table(texts("second"))
    written = await first.put("a", "1")

    assert [written, written] == [await first.revision(), await second.revision()]
    assert await first.delete("a")
    assert await second.revision() > written


async def test_put_expecting_absence(table: Table[str]) -> None:
    """Expected revision 0 creates, and refuses to overwrite."""
    await table.put("a", "1", expected=0)

    with pytest.raises(Conflict):
        await table.put("a", "2", expected=0)

    found = await table.get("a")
    assert found is not None
    assert found.value == "1"


async def test_put_expecting_a_revision(table: Table[str]) -> None:
    """A write with the revision that it read goes through once."""
    revision = await table.put("a", "1")

    await table.put("a", "2", expected=revision)

    with pytest.raises(Conflict):
        await table.put("a", "3", expected=revision)


async def test_of_two_racing_writers_one_wins(table: Table[str]) -> None:
    """Two writers that read the same revision do not both succeed."""
    revision = await table.put("a", "0")

    results = await asyncio.gather(
        table.put("a", "1", expected=revision),
        table.put("a", "2", expected=revision),
        return_exceptions=True,
    )

    assert sorted((isinstance(r, Conflict) for r in results), reverse=True) == [True, False]


async def test_delete(table: Table[str]) -> None:
    """A deletion tells whether there was something to delete."""
    await table.put("a", "1")

    assert await table.delete("a") is True
    assert await table.delete("a") is False
    assert await table.get("a") is None


async def test_delete_expecting_a_revision(table: Table[str]) -> None:
    """A value that was written in between is not deleted."""
    old = await table.put("a", "1")
    new = await table.put("a", "2")

    with pytest.raises(Conflict):
        await table.delete("a", expected=old)

    assert await table.delete("a", expected=new) is True


async def test_watch_from_the_start_sends_the_state_then_synced(table: Table[str]) -> None:
    """A watch without a revision begins with everything, by key, and says when that is done."""
    second = await table.put("b", "2")
    first = await table.put("a", "1")

    events = await take(table.watch(), 3)

    assert [Upserted("a", "1", first), Upserted("b", "2", second), Synced(first)] == events


async def test_watch_sends_changes_in_order(table: Table[str]) -> None:
    """After the state come all changes, deletions among them, in the order of their revisions."""
    watch = table.watch()
    await take(watch, 1)

    put = await table.put("a", "1")
    await table.delete("a")
    again = await table.put("a", "2")
    changes = [event for event in await take(watch, 5) if not isinstance(event, Synced)][:3]

    assert [Upserted("a", "1", put), Removed("a", put + 1), Upserted("a", "2", again)] == changes


async def test_watch_resumes_after_a_revision(table: Table[str]) -> None:
    """A resumed watch sends what came after its revision and nothing before it."""
    await table.put("a", "1")
    seen = await table.put("b", "1")
    missed = await table.put("c", "1")

    events = await take(table.watch(after=seen), 2)

    assert [Upserted("c", "1", missed), Synced(missed)] == events


async def test_watch_of_revisions_no_longer_held(table: Table[str]) -> None:
    """A watch that would have to skip events is refused."""
    seen = await table.put("a", "0")
    for number in range(BACKLOG + 1):
        await table.put("a", str(number))

    with pytest.raises(WatchTooOld):
        await take(table.watch(after=seen), 1)


async def test_watch_wakes_on_a_write(table: Table[str]) -> None:
    """A reader that waits is told of a write when it happens."""
    watch = table.watch()
    await take(watch, 1)
    waiting = asyncio.ensure_future(anext(watch))
    await SystemClock().sleep(0)

    revision = await table.put("a", "1")

    assert Upserted("a", "1", revision) == await asyncio.wait_for(waiting, 5)


async def test_watch_sends_bookmarks(store: Store) -> None:
    """An idle watch is told revisions of other tables, so that it can resume after them."""
    watched, other = store.table(texts("watched")), store.table(texts("other"))
    watch = watched.watch()
    await take(watch, 1)
    revision = await other.put("a", "1")

    while True:
        (event,) = await take(watch, 1)
        if event == Synced(revision):
            break

    events = await take(watched.watch(after=revision), 1)
    assert [Synced(revision)] == events


async def test_slow_reader_is_cut(table: Table[str]) -> None:
    """A reader that falls behind by more than the backlog is cut, and nobody waits for it."""
    slow, quick = table.watch(), table.watch()
    await take(slow, 1)
    await take(quick, 1)
    seen: list[Any] = []

    for number in range(BACKLOG + 1):
        await table.put("a", str(number))
        seen.extend(await take(quick, 1))

    with pytest.raises(Saturated):
        await take(slow, 1)
    changes = [event for event in seen if isinstance(event, Upserted)]
    assert len(changes) >= BACKLOG


async def test_feed_starts_over_by_itself(table: Table[str]) -> None:
    """A feed whose watch was cut says Reset, and sends the full state again."""
    feed = TableFeed(table=table, clock=SystemClock())()
    await take(feed, 1)
    for number in range(BACKLOG + 1):
        await table.put("a", str(number))

    events = await take(feed, 3)

    assert Reset() == events[0]
    assert isinstance(events[1], Upserted)
    assert events[1].value == str(BACKLOG)
    assert isinstance(events[2], Synced)


async def test_sequence_grows(store: Store) -> None:
    """Each number is larger than the one before, whoever draws."""
    sequence = store.sequence("numbers")

    numbers = [await sequence.next() for _ in range(100)]

    assert sorted(set(numbers)) == numbers
    assert numbers[0] > 0
