import asyncio
from collections.abc import AsyncIterator

import pytest

from kvplane_services.errors import WatchTooOld
from kvplane_services.store.model import Event, Synced, Upserted, Versioned
from kvplane_services.store.table_copy import TableCopy
from tests.support.clock import FakeClock


@pytest.fixture
def copy() -> TableCopy[str]:
    return TableCopy(revision=10, clock=FakeClock(), backlog=8, bookmark_interval=30, patience=2)


async def take(events: AsyncIterator[Event[str]], count: int) -> list[Event[str]]:
    return [await asyncio.wait_for(anext(events), 1) for _ in range(count)]


def test_what_is_learnt_is_read_at_once(copy: TableCopy[str]) -> None:
    """A value that was learnt ahead of its turn is found and listed, and a deletion too."""
    copy.put("a", "old", 11)
    copy.put("b", "old", 12)

    copy.learn("a", "new", 20)
    copy.learn("c", "new", 21)
    copy.learn_gone("b", 22)

    assert copy.find("a") == Versioned("a", "new", 20)
    assert copy.find("b") is None
    assert copy.snapshot().items == (Versioned("a", "new", 20), Versioned("c", "new", 21))
    assert copy.snapshot().revision == 12


def test_reading_never_goes_back(copy: TableCopy[str]) -> None:
    """Older changes whose turn comes later, and older news, do not hide what was learnt."""
    copy.learn("a", "new", 20)

    copy.put("a", "older", 15)
    copy.learn("a", "older too", 16)
    copy.delete("a", 17)
    copy.learn_gone("a", 18)
    copy.advance(18)

    assert copy.find("a") == Versioned("a", "new", 20)


def test_later_changes_count(copy: TableCopy[str]) -> None:
    """When its turn is over, what was learnt gives way to what came after it."""
    copy.learn("a", "new", 20)

    copy.put("a", "new", 20)
    copy.put("a", "newer", 21)
    copy.advance(21)
    assert copy.find("a") == Versioned("a", "newer", 21)

    copy.learn("a", "too late", 20)
    copy.learn_gone("a", 21)
    assert copy.find("a") == Versioned("a", "newer", 21)


def test_what_is_learnt_is_held_until_its_turn_only(copy: TableCopy[str]) -> None:
    """Nothing is kept of it afterwards."""
    for revision in range(20, 40):
        copy.learn(f"{revision % 3}", "new", revision)
        copy.learn_gone("gone", revision)
    for revision in range(20, 40):
        copy.put(f"{revision % 3}", "new", revision)
    copy.advance(40)

    assert not copy._early
    assert not copy._early._order


async def test_a_reader_is_told_once(copy: TableCopy[str]) -> None:
    """A watch has what was learnt in its state, and is not told of it, or of older changes."""
    copy.learn("a", "new", 20)
    copy.learn_gone("b", 21)
    copy.put("b", "old", 11)
    watch = copy.watch()
    assert await take(watch, 2) == [Upserted("a", "new", 20), Synced(11)]

    copy.put("a", "older", 15)
    copy.put("c", "other", 16)
    copy.put("a", "new", 20)
    copy.delete("b", 21)
    copy.put("a", "newer", 22)
    copy.advance(22)

    assert await take(watch, 2) == [Upserted("c", "other", 16), Upserted("a", "newer", 22)]


async def test_a_reader_of_before_is_told_in_order(copy: TableCopy[str]) -> None:
    """What is learnt is no change yet: readers are told of it when its turn comes."""
    watch = copy.watch()
    await take(watch, 1)

    copy.learn("a", "new", 20)
    copy.put("b", "other", 15)
    copy.put("a", "new", 20)
    copy.advance(20)

    assert await take(watch, 2) == [Upserted("b", "other", 15), Upserted("a", "new", 20)]


async def test_starting_over_keeps_what_came_later(copy: TableCopy[str]) -> None:
    """What was learnt before a listing is in it, whatever the revisions; later news stay."""
    copy.put("a", "old", 11)
    copy.learn("b", "of the lost history", 900)
    learnt = copy.learnt()
    copy.learn("c", "after the listing", 7)  # Behind the lost history: not noted.
    watch = copy.watch()
    await take(watch, 1)

    copy.start_over([Versioned("a", "new", 3)], 5, learnt=learnt)
    copy.learn("d", "new", 6)

    assert copy.snapshot().items == (Versioned("a", "new", 3), Versioned("d", "new", 6))
    assert copy.snapshot().revision == copy.started == 5
    await take(watch, 2)
    with pytest.raises(WatchTooOld):
        await take(watch, 1)


async def test_starting_over_keeps_writes_during_the_listing(copy: TableCopy[str]) -> None:
    """A write whose answer came after the listing began is not hidden by the listing."""
    learnt = copy.learnt()
    copy.learn("a", "mine", 21)

    copy.start_over([Versioned("a", "old", 3)], 20, learnt=learnt)

    assert copy.find("a") == Versioned("a", "mine", 21)


async def test_waiting_for_a_revision(copy: TableCopy[str]) -> None:
    """`reached` returns when the copy is there, or starts over."""
    waiting = [asyncio.ensure_future(copy.reached(revision)) for revision in (10, 12, 99)]
    await copy._clock.sleep(0)
    assert [task.done() for task in waiting] == [True, False, False]

    copy.put("a", "1", 12)
    copy.advance(12)
    await asyncio.wait_for(waiting[1], 1)
    assert not waiting[2].done()

    copy.start_over([], 5)
    await asyncio.wait_for(waiting[2], 1)
    assert not copy._waiting


async def test_a_watch_waits_for_a_revision_from_elsewhere(copy: TableCopy[str]) -> None:
    """A reader that saw more at another replica is served when this copy has it too."""
    waiting = asyncio.ensure_future(anext(copy.watch(after=15)))
    await copy._clock.sleep(0)

    copy.put("a", "1", 15)
    copy.put("a", "2", 16)
    copy.advance(16)

    assert await asyncio.wait_for(waiting, 1) == Upserted("a", "2", 16)


async def test_a_watch_does_not_wait_for_ever(copy: TableCopy[str]) -> None:
    """A revision that does not come within the patience is refused."""
    clock = copy._clock
    assert isinstance(clock, FakeClock)
    waiting = asyncio.ensure_future(anext(copy.watch(after=15)))
    await clock.wait_for_sleepers()

    await clock.advance(2)

    with pytest.raises(WatchTooOld):
        await asyncio.wait_for(waiting, 1)
