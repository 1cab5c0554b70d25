import pytest

from kvplane_services.adapters.memory import MemoryStore, MemoryTable
from kvplane_services.errors import Unavailable
from kvplane_services.store.journal import Journal
from tests.support.clock import FakeClock


class FailingTable:
    """A table that can be away."""

    def __init__(self, table: MemoryTable[str]) -> None:
        self._table = table
        self.away = False
        self.writes: list[tuple[str, str | None]] = []

    async def put(self, key: str, value: str, *, expected: int | None = None) -> int:
        self._check()
        self.writes.append((key, value))
        return await self._table.put(key, value, expected=expected)

    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        self._check()
        self.writes.append((key, None))
        return await self._table.delete(key, expected=expected)

    def __getattr__(self, name: str) -> object:
        return getattr(self._table, name)

    def _check(self) -> None:
        if self.away:
            raise Unavailable("the store is away", retry_after=1.0)


@pytest.fixture
def table() -> FailingTable:
    return FailingTable(MemoryStore(clock=FakeClock()).table(str))


async def test_every_change_is_written_in_order(table: FailingTable) -> None:
    """Changes of the same key are not merged: each is an event to somebody."""
    journal: Journal[str] = Journal(table=table)  # type: ignore[arg-type]
    journal.put("a", "1")
    journal.put("a", "2")
    journal.delete("a")

    await journal.flush()

    assert table.writes == [("a", "1"), ("a", "2"), ("a", None)]


async def test_nothing_is_lost_while_the_store_is_away(table: FailingTable) -> None:
    """What could not be written is written by the next flush, once."""
    journal: Journal[str] = Journal(table=table)  # type: ignore[arg-type]
    table.away = True
    journal.put("a", "1")
    with pytest.raises(Unavailable):
        await journal.flush()
    journal.put("b", "1")
    table.away = False

    await journal.flush()
    await journal.flush()

    assert table.writes == [("a", "1"), ("b", "1")]
