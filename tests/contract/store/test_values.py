"""Values: read, written and deleted, by one process and by several."""

import asyncio

import pytest

from kvplane_services.errors import Conflict
from kvplane_services.store.model import Upserted
from kvplane_services.store.ports import Store, Table
from tests.contract.store.kinds import Opener
from tests.contract.store.waiting import changes, eventually, is_gone
from tests.support.store_values import TEXTS, texts

KEYS = (
    "",
    "a",
    "a/b",
    "a%2Fb",
    "%",
    "/",
    "..",
    "../text/a",
    "texts/a",
    "a\x00b",
    "\n",
    "é",
    "e\u0301",
    "\U0001f600",
    "\ud800",
    "x" * 20_000,
    "x" * 20_000 + "/",
)


async def test_get_returns_what_was_put(table: Table[str]) -> None:
    """A value is read back at once, under the revision that its write returned."""
    revision = await table.put("a", "1")

    found = await table.get("a")

    assert found is not None
    assert ("a", "1", revision) == (found.key, found.value, found.revision)


async def test_get_of_an_unknown_key(table: Table[str]) -> None:
    """There is nothing under a key that was never written."""
    assert await table.get("a") is None
    assert await table.get("a", current=True) is None


async def test_the_store_answers(store: Store) -> None:
    """A store that answers is reachable."""
    await store.table(TEXTS).put("a", "1")

    assert store.reachable


async def test_the_same_table_for_the_same_spec(store: Store) -> None:
    """A table is made once, and a sequence too."""
    assert store.table(TEXTS) is store.table(TEXTS)
    assert store.sequence("numbers") is store.sequence("numbers")


async def test_revisions_grow_over_all_tables(store: Store) -> None:
    """Writes to any table of a store get larger and larger revisions."""
    first, second = store.table(texts("first")), store.table(texts("second"))

    revisions = [await first.put("a", "1"), await second.put("a", "1"), await first.put("a", "2")]

    assert sorted(set(revisions)) == revisions
    assert revisions[0] > 0


async def test_list_is_sorted_and_a_watch_goes_on_after_it(table: Table[str]) -> None:
    """A listing is by key, and a watch that starts at its revision misses nothing."""
    await table.reached(await table.put("b", "2"))
    await table.reached(await table.put("a", "1"))

    snapshot = await table.list()
    later = await table.put("c", "3")
    (event,) = await changes(table.watch(after=snapshot.revision), 1)

    assert [(item.key, item.value) for item in snapshot.items] == [("a", "1"), ("b", "2")]
    assert Upserted("c", "3", later) == event


async def test_list_has_own_writes_at_once(table: Table[str]) -> None:
    """What this process wrote or deleted is so in the next listing."""
    for number in range(20):
        await table.put(f"{number:02}", "1")
        await table.put(f"{number:02}", "2")
        if number % 2:
            await table.delete(f"{number:02}")

    items = (await table.list()).items

    assert [(item.key, item.value) for item in items] == [(f"{n:02}", "2") for n in range(0, 20, 2)]


async def test_revision_reaches_every_write(store: Store) -> None:
    """The revision of a copy counts the writes to all tables."""
    first, second = store.table(texts("first")), store.table(texts("second"))
    written = await first.put("a", "1")

    await second.reached(written)

    assert await second.revision() >= written


async def test_put_expecting_absence(table: Table[str]) -> None:
    """Expected revision 0 creates, and refuses to overwrite."""
    await table.put("a", "1", expected=0)

    with pytest.raises(Conflict) as refused:
        await table.put("a", "2", expected=0)

    found = await table.get("a")
    assert found is not None
    assert found.value == "1"
    assert refused.value.metadata == {"key": "a"}


async def test_put_expecting_a_revision(table: Table[str]) -> None:
    """A write with the revision that it read goes through once."""
    revision = await table.put("a", "1")

    await table.put("a", "2", expected=revision)

    with pytest.raises(Conflict):
        await table.put("a", "3", expected=revision)


async def test_of_racing_writers_one_wins(table: Table[str], others_table: Table[str]) -> None:
    """Of writers that read the same revision, in one process or several, one succeeds."""
    revision = await table.put("a", "0")

    results = await asyncio.gather(
        *(
            writer.put("a", f"{number}", expected=revision)
            for number, writer in enumerate((table, others_table) * 3, start=1)
        ),
        return_exceptions=True,
    )

    assert sorted(isinstance(result, Conflict) for result in results) == [False, *[True] * 5]


async def test_after_a_refusal_the_newer_value_is_read(
    table: Table[str], others_table: Table[str]
) -> None:
    """Whoever is refused since another process was quicker reads what that one wrote at once."""
    for number in range(20):
        found = await table.get("a")
        written = await others_table.put("a", f"{number}")
        with pytest.raises(Conflict):
            await table.put("a", "mine", expected=found.revision if found else 0)
        found = await table.get("a")
        assert found is not None
        assert (f"{number}", written) == (found.value, found.revision)


async def test_delete(table: Table[str]) -> None:
    """A deletion tells whether there was something to delete."""
    await table.put("a", "1")

    assert await table.delete("a") is True
    assert await table.get("a") is None
    assert await table.delete("a") is False
    assert await table.get("a") is None


async def test_delete_expecting_a_revision(table: Table[str]) -> None:
    """A value that was written in between is not deleted."""
    old = await table.put("a", "1")
    new = await table.put("a", "2")

    with pytest.raises(Conflict):
        await table.delete("a", expected=old)

    assert await table.delete("a", expected=new) is True
    assert await table.delete("a", expected=new) is False


@pytest.mark.parametrize("current", [False, True])
async def test_any_text_is_a_key(table: Table[str], store: Store, *, current: bool) -> None:
    """Keys of whatever characters and length hold their own values, and reach no other's."""
    for number, key in enumerate(KEYS):
        await table.put(key, f"{number}", expected=0)
    await store.table(texts("text")).put("a", "of another table")

    for number, key in enumerate(KEYS):
        found = await table.get(key, current=current)
        assert found is not None
        assert (key, f"{number}") == (found.key, found.value)
    listed = await table.list()
    assert {item.key for item in listed.items} == set(KEYS)
    for number, key in enumerate(KEYS):
        await table.delete(key)
        assert len((await table.list()).items) == len(KEYS) - number - 1
    assert await store.table(texts("text")).get("a", current=current) is not None


async def test_what_one_process_writes_another_reads(
    table: Table[str], others_table: Table[str]
) -> None:
    """A copy has what others wrote once it reached the revision; asked for, the store itself."""
    written = await others_table.put("a", "1")
    found = await table.get("a", current=True)
    assert found is not None
    assert found.revision == written

    gone = await others_table.put("b", "1")
    await others_table.delete("a", expected=written)
    await table.reached(gone)
    assert await table.get("b") is not None
    await eventually(lambda: is_gone(table, "a"))


async def test_a_process_that_comes_later_has_everything(table: Table[str], opener: Opener) -> None:
    """A store that has just been opened holds what was there."""
    for key in KEYS:
        await table.put(key, "1")

    latecomer = (await opener()).table(TEXTS)

    assert {item.key for item in (await latecomer.list()).items} == set(KEYS)
