import datetime as dt

import pytest

from kvplane_services.adapters.memory import MemoryStore
from kvplane_services.errors import WatchTooOld
from tests.support.clock import FakeClock
from tests.support.store_values import TEXTS


class SetBackClock(FakeClock):
    """A clock whose time of day can be set."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = dt.timedelta()

    def wall(self) -> dt.datetime:
        return super().wall() + self.offset


async def test_numbers_keep_growing_over_a_restart() -> None:
    """A store made later draws larger numbers than one made before drew."""
    clock = FakeClock()
    before = MemoryStore(clock=clock).sequence("numbers")
    drawn = [await before.next() for _ in range(1000)]
    await clock.advance(0.1)

    after = await MemoryStore(clock=clock).sequence("numbers").next()

    assert after > max(drawn)


async def test_numbers_keep_growing_when_the_time_of_day_is_set_back() -> None:
    """Within one life of the plane numbers grow, whatever the time of day does."""
    clock = SetBackClock()
    sequence = MemoryStore(clock=clock).sequence("numbers")
    first = await sequence.next()
    clock.offset = dt.timedelta(days=-1)

    assert await sequence.next() == first + 1


@pytest.mark.parametrize("distance", [-1, 1])
async def test_watch_of_another_life(distance: int) -> None:
    """A revision from before the store was made, or from after now, is refused."""
    store = MemoryStore(clock=FakeClock())
    table = store.table(TEXTS)

    with pytest.raises(WatchTooOld):
        await anext(table.watch(after=store.revision + distance))


async def test_table_describes_itself() -> None:
    """A table's repr shows what it holds."""
    table = MemoryStore(clock=FakeClock()).table(TEXTS)
    await table.put("a", "1")

    assert repr(table) == "<MemoryTable of texts: 1 values>"
