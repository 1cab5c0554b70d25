from collections.abc import Sequence
from typing import Any

import pytest

from kvplane_services.adapters.memory import MemoryStore, MemoryTable
from kvplane_services.errors import Conflict, GuardFailed, Unavailable
from kvplane_services.store.journal import Journal
from kvplane_services.store.model import Delete, Guard, Put
from kvplane_services.store.ports import MAX_CHANGES
from tests.support.clock import FakeClock
from tests.support.store_values import TEXTS


class FailingTable:
    """A table that can be away, and that notes what is written."""

    def __init__(self, table: MemoryTable[str]) -> None:
        self._table = table
        self.away = False
        self.writes: list[tuple[str, str | None]] = []

    async def commit(
        self, changes: Sequence[Put[str] | Delete], *, guards: Sequence[Guard] = ()
    ) -> int:
        if self.away:
            raise Unavailable("the store is away", retry_after=1.0)
        revision = await self._table.commit(changes, guards=guards)
        self.writes.extend(
            (change.key, change.value if isinstance(change, Put) else None) for change in changes
        )
        return revision

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)


@pytest.fixture
def table() -> FailingTable:
    return FailingTable(MemoryStore(clock=FakeClock()).table(TEXTS))


async def test_the_latest_state_of_every_key_is_written(table: FailingTable) -> None:
    """Changes of the same key that wait together are one write, in the place of the last."""
    journal: Journal[str] = Journal(table=table)
    journal.put("a", "1")
    journal.put("b", "1")
    journal.put("a", "2")
    journal.put("c", "1")
    journal.delete("c")

    await journal.flush()

    assert table.writes == [("b", "1"), ("a", "2"), ("c", None)]


async def test_many_changes_take_several_commits(table: FailingTable) -> None:
    """More changes than a commit holds are all written, in order."""
    journal: Journal[str] = Journal(table=table)
    keys = [f"{number:03}" for number in range(MAX_CHANGES + 5)]
    for key in keys:
        journal.put(key, "1")

    await journal.flush()

    assert [key for key, _ in table.writes] == keys


async def test_a_checked_journal_writes_over_its_own_values_only(table: FailingTable) -> None:
    """What somebody else wrote stays; the others of the batch are written, and it is told."""
    refused: list[str] = []
    journal: Journal[str] = Journal(
        table=table,
        checked=True,
        on_refused=lambda key, _: refused.append(key),
    )
    journal.put("a", "1")
    journal.put("b", "1")
    await journal.flush()
    await table.put("a", "theirs")
    journal.put("a", "2")
    journal.put("b", "2")

    await journal.flush()

    theirs, ours = await table.get("a"), await table.get("b")
    assert (theirs.value, ours.value) == ("theirs", "2")
    assert refused == ["a"]
    journal.adopt("a", theirs.revision)
    journal.put("a", "3")
    await journal.flush()
    assert (await table.get("a")).value == "3"
    assert len(journal) == 0


async def test_a_write_whose_answer_was_lost_is_not_refused(table: FailingTable) -> None:
    """The store has the value already, exactly as it is to be written."""
    refused: list[str] = []
    journal: Journal[str] = Journal(
        table=table,
        checked=True,
        on_refused=lambda key, _: refused.append(key),
    )
    await table.put("a", "1")
    journal.put("a", "1")

    await journal.flush()

    assert refused == []


async def test_a_guard_that_fails_refuses_the_change(table: FailingTable) -> None:
    """Nothing is written for a replica that another one took over from."""
    refused: list[tuple[str, type[Conflict]]] = []
    journal: Journal[str] = Journal(
        table=table,
        on_refused=lambda key, error: refused.append((key, type(error))),
    )
    revision = await table.put("guard", "mine")
    journal.put("a", "1", guard=Guard("texts", "guard", revision))
    await journal.flush()
    await table.put("guard", "theirs")
    journal.put("a", "2", guard=Guard("texts", "guard", revision))

    await journal.flush()

    assert (await table.get("a")).value == "1"
    assert refused == [("a", GuardFailed)]


async def test_nothing_is_lost_while_the_store_is_away(table: FailingTable) -> None:
    """What could not be written is written by the next flush, once."""
    journal: Journal[str] = Journal(table=table)
    table.away = True
    journal.put("a", "1")
    with pytest.raises(Unavailable):
        await journal.flush()
    journal.put("b", "1")
    table.away = False

    await journal.flush()
    await journal.flush()

    assert table.writes == [("a", "1"), ("b", "1")]
