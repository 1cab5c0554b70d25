"""Watches, and feeds that start over."""

import asyncio
import itertools
from typing import Any

import pytest

from kvplane_services.clock import SystemClock
from kvplane_services.errors import Saturated, WatchTooOld
from kvplane_services.store.feeds import TableFeed
from kvplane_services.store.model import Removed, Reset, Synced, Upserted
from kvplane_services.store.ports import Store, Table
from tests.contract.store.kinds import BACKLOG
from tests.contract.store.waiting import changes, take
from tests.support.store_values import texts


async def test_watch_from_the_start_sends_the_state_then_synced(table: Table[str]) -> None:
    """A watch without a revision begins with everything, by key, and says when that is done."""
    second = await table.put("b", "2")
    first = await table.put("a", "1")
    await table.reached(first)

    *state, synced = await take(table.watch(), 3)

    assert [Upserted("a", "1", first), Upserted("b", "2", second)] == state
    assert isinstance(synced, Synced)
    assert synced.revision >= first


async def test_watch_sends_changes_in_order(table: Table[str]) -> None:
    """After the state come all changes, deletions among them, in the order of their revisions."""
    watch = table.watch()
    await take(watch, 1)

    put = await table.put("a", "1")
    await table.delete("a")
    again = await table.put("a", "2")
    first, removed, last = await changes(watch, 3)

    assert [Upserted("a", "1", put), Upserted("a", "2", again)] == [first, last]
    assert isinstance(removed, Removed)
    assert removed.key == "a"
    assert put < removed.revision < again


async def test_a_watch_tells_no_own_write_twice(table: Table[str]) -> None:
    """A watch that begins right after a write has it in its state or as a change, not in both."""
    for number in range(50):
        written = await table.put("a", f"{number}")
        watch = table.watch()
        marker = await table.put("marker", f"{number}")
        seen = []
        while (event := (await changes(watch, 1))[0]).revision != marker:
            seen.append(event)
        assert [event for event in seen if event.key == "a"] == [
            Upserted("a", f"{number}", written)
        ]
        await table.reached(marker)


async def test_watches_tell_all_writers_changes_in_one_order(
    table: Table[str], others_table: Table[str]
) -> None:
    """While processes write at once, every watch tells each change once, in the same order."""
    count = 8

    async def write(writer: Table[str], name: str) -> list[int]:
        return [await writer.put(f"{n % 3}", f"{name}{n}") for n in range(count // 2)]

    watches = [table.watch(), others_table.watch()]
    for watch in watches:
        await take(watch, 1)
    written = sorted(
        itertools.chain(*await asyncio.gather(write(table, "x"), write(others_table, "y")))
    )
    told = [await changes(watch, count) for watch in watches]

    assert told[0] == told[1]
    assert [event.revision for event in told[0]] == written
    last = {event.key: event for event in told[0]}
    for reader in (table, others_table):
        for key, event in last.items():
            found = await reader.get(key)
            assert found is not None
            assert found.revision == event.revision


async def test_watch_resumes_after_a_revision(table: Table[str]) -> None:
    """A resumed watch sends what came after its revision and nothing before it."""
    await table.put("a", "1")
    seen = await table.put("b", "1")
    missed = await table.put("c", "1")
    await table.reached(missed)

    event, synced = await take(table.watch(after=seen), 2)

    assert Upserted("c", "1", missed) == event
    assert isinstance(synced, Synced)
    assert synced.revision >= missed


async def test_watch_resumes_at_another_process(
    table: Table[str], others_table: Table[str]
) -> None:
    """A reader may go on elsewhere from a revision that it saw here a moment ago."""
    for number in range(10):
        seen = await table.put("a", f"{number}")
        missed = await table.put("a", "missed")
        events = others_table.watch(after=seen)
        assert await changes(events, 1) == [Upserted("a", "missed", missed)]


async def test_watch_of_revisions_no_longer_held(table: Table[str]) -> None:
    """A watch that would have to skip events is refused."""
    seen = written = await table.put("a", "0")
    for number in range(BACKLOG + 1):
        written = await table.put("a", str(number))
    await table.reached(written)

    with pytest.raises(WatchTooOld):
        await take(table.watch(after=seen), 1)


async def test_watch_of_a_revision_that_is_not_there(table: Table[str]) -> None:
    """A revision that the store never gave, or gave in an earlier life, is refused."""
    written = await table.put("a", "0")

    with pytest.raises(WatchTooOld):
        await take(table.watch(after=written + 10**9), 1)


async def test_watch_wakes_on_a_write(table: Table[str]) -> None:
    """A reader that waits is told of a write when it happens."""
    watch = table.watch()
    await take(watch, 1)
    waiting = asyncio.ensure_future(changes(watch, 1))
    await SystemClock().sleep(0)

    revision = await table.put("a", "1")

    assert [Upserted("a", "1", revision)] == await asyncio.wait_for(waiting, 5)


async def test_watch_sends_bookmarks(store: Store) -> None:
    """An idle watch is told revisions of other tables, so that it can resume after them."""
    watched, other = store.table(texts("watched")), store.table(texts("other"))
    watch = watched.watch()
    await take(watch, 1)
    revision = await other.put("a", "1")

    while True:
        (event,) = await take(watch, 1)
        if isinstance(event, Synced) and event.revision >= revision:
            break

    (event,) = await take(watched.watch(after=revision), 1)
    assert isinstance(event, Synced)
    assert event.revision >= revision


async def test_slow_reader_is_cut(table: Table[str]) -> None:
    """A reader that falls behind by more than the backlog is cut, and nobody waits for it."""
    slow, quick = table.watch(), table.watch()
    await take(slow, 1)
    await take(quick, 1)
    seen: list[Any] = []

    for number in range(BACKLOG + 1):
        await table.put("a", str(number))
        seen.extend(await changes(quick, 1))

    with pytest.raises(Saturated):
        await take(slow, 1)
    assert [event.value for event in seen] == [str(number) for number in range(BACKLOG + 1)]


async def test_feed_starts_over_by_itself(table: Table[str]) -> None:
    """A feed whose watch was cut says Reset, and sends the full state again."""
    feed = TableFeed(table=table, clock=SystemClock())()
    await take(feed, 1)
    for number in range(BACKLOG + 1):
        await table.reached(await table.put("a", str(number)))

    events = await take(feed, 3)

    assert Reset() == events[0]
    assert isinstance(events[1], Upserted)
    assert events[1].value == str(BACKLOG)
    assert isinstance(events[2], Synced)
