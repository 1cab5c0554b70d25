"""Readers of a table's copy leave others their turn, and need not be faster than a large table."""

import asyncio

from kvplane_services.store.model import Synced, Upserted
from kvplane_services.store.table_copy import TableCopy
from tests.support.clock import FakeClock


def copy_of(count: int, *, backlog: int = 4) -> TableCopy[int]:
    """A copy that holds so many values."""
    copy: TableCopy[int] = TableCopy(
        revision=1, clock=FakeClock(), backlog=backlog, bookmark_interval=30.0
    )
    for number in range(count):
        copy.put(f"{number:06d}", number, number + 2)
    return copy


async def test_a_reader_of_a_large_table_leaves_others_their_turn() -> None:
    """While thousands of values are read, other tasks run in between."""
    turns, clock = 0, FakeClock()

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await clock.sleep(0)

    task = asyncio.create_task(other())
    async for event in copy_of(5000).watch():
        if isinstance(event, Synced):
            break
    task.cancel()
    assert turns >= 10


async def test_the_log_of_a_large_table_is_long_enough_to_read_all_of_it() -> None:
    """Who reads a large table while much of it changes is told all changes, and not cut."""
    copy = copy_of(4000)
    events = copy.watch()
    first = await anext(events)
    for number in range(900):
        copy.put(f"{number:06d}", -number, 10_000 + number)
    told = [first]
    async for event in events:
        told.append(event)
        if isinstance(event, Upserted) and event.revision == 10_899:
            break
    assert len(told) == 4000 + 1 + 900
