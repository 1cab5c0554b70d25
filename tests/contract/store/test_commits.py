"""Several changes at once, and attempts whose answer was lost."""

import pytest

from kvplane_services.errors import Conflict, GuardFailed
from kvplane_services.store.model import Delete, Guard, Put
from kvplane_services.store.ports import MAX_CHANGES, MAX_GUARDS, Store, Table
from tests.contract.store.waiting import changes
from tests.support.store_values import texts


async def test_a_commit_makes_all_changes_at_one_revision(table: Table[str]) -> None:
    """Puts and deletions of a commit share a revision, and are told in one piece."""
    await table.put("gone", "0")
    watch = table.watch()
    await changes(watch, 1)

    revision = await table.commit([Put("a", "1"), Delete("gone"), Put("b", "2"), Delete("no")])

    assert {event.revision for event in await changes(watch, 3)} == {revision}
    found = [(item.key, item.value, item.revision) for item in (await table.list()).items]
    assert found == [("a", "1", revision), ("b", "2", revision)]


async def test_a_commit_with_one_conflict_changes_nothing(table: Table[str]) -> None:
    """One value that is not as expected refuses all, and is named."""
    old = await table.put("a", "1")
    await table.put("a", "2")

    with pytest.raises(Conflict) as refused:
        await table.commit([Put("b", "new", 0), Put("a", "3", old), Delete("a2", 0)])

    assert refused.value.metadata == {"key": "a"}
    assert not isinstance(refused.value, GuardFailed)
    assert await table.get("b", current=True) is None


async def test_guards_of_any_table(store: Store) -> None:
    """A commit goes through while its guards hold, whatever tables they are in."""
    first, second = store.table(texts("first")), store.table(texts("second"))
    home = await second.put("home", "me")
    guards = [Guard("second", "home", home), Guard("second", "rival", 0)]

    await first.commit([Put("a", "1")], guards=guards)
    await second.put("rival", "other")

    with pytest.raises(GuardFailed) as refused:
        await first.commit([Put("a", "2")], guards=guards)
    assert refused.value.metadata == {"key": "rival"}
    found = await first.get("a", current=True)
    assert found is not None
    assert found.value == "1"


async def test_guards_come_before_conflicts(store: Store) -> None:
    """Who is no longer allowed to write is told so, and not to read again and retry."""
    first, second = store.table(texts("first")), store.table(texts("second"))
    home = await second.put("home", "me")
    await second.put("home", "other")
    await first.put("a", "1")

    with pytest.raises(GuardFailed):
        await first.commit([Put("a", "2", 0)], guards=[Guard("second", "home", home)])


async def test_a_guard_on_what_is_changed(table: Table[str]) -> None:
    """A guard may be about a value that the commit changes, and a commit may only check."""
    revision = await table.put("a", "1")
    guard = Guard("texts", "a", revision)

    await table.commit([], guards=[guard])
    await table.commit([Put("a", "2", revision)], guards=[guard])

    with pytest.raises(GuardFailed):
        await table.commit([], guards=[guard])


async def test_another_processes_write_fails_a_guard(
    table: Table[str], others_table: Table[str]
) -> None:
    """A guard is checked at the store, not in the copy of whoever commits."""
    revision = await table.put("home", "me")
    guard = Guard("texts", "home", revision)
    await others_table.put("home", "other", expected=revision)

    with pytest.raises(GuardFailed):
        await table.commit([Put("a", "1")], guards=[guard])


async def test_a_commit_may_be_as_large_as_said(table: Table[str]) -> None:
    """All changes and guards that the port allows fit in one commit; one more is refused."""
    guards = [Guard("texts", f"absent-{n}", 0) for n in range(MAX_GUARDS)]
    puts: list[Put[str] | Delete] = [Put(f"{n}", "1", 0) for n in range(MAX_CHANGES)]

    await table.commit(puts, guards=guards)

    assert len((await table.list()).items) == MAX_CHANGES
    with pytest.raises(ValueError, match="at most"):
        await table.commit([*puts, Put("more", "1")])
    with pytest.raises(ValueError, match="at most"):
        await table.commit([], guards=[*guards, Guard("texts", "more", 0)])
    with pytest.raises(ValueError, match="once"):
        await table.commit([Put("a", "1"), Delete("a")])


async def test_the_same_put_again_changes_nothing(table: Table[str]) -> None:
    """A put that was done already is as expected, and returns the revision that it got."""
    before = await table.put("a", "0")
    revision = await table.put("a", "1", expected=before)

    again = await table.put("a", "1", expected=before)

    assert again == revision
    found = await table.get("a", current=True)
    assert found is not None
    assert found.revision == revision


async def test_the_same_commit_again_changes_nothing(table: Table[str]) -> None:
    """A commit that was done already returns the revision that it got."""
    gone = await table.put("gone", "0")
    wanted: list[Put[str] | Delete] = [Put("a", "1", 0), Put("b", "2", 0), Delete("gone", gone)]
    revision = await table.commit(wanted)

    assert await table.commit(wanted) == revision


async def test_a_commit_that_is_done_in_part_is_done_again(table: Table[str]) -> None:
    """Where only some values are there already, all get one new revision."""
    written = await table.put("a", "1")

    revision = await table.commit([Put("a", "1", 0), Put("b", "2", 0)])

    assert revision > written
    for key in ("a", "b"):
        found = await table.get(key, current=True)
        assert found is not None
        assert found.revision == revision


async def test_another_value_is_not_as_expected(table: Table[str], store: Store) -> None:
    """Only exactly what was to be written counts as written, what it hangs on included."""
    await table.put("a", "1")
    anchor = await store.anchors.open(60.0)

    with pytest.raises(Conflict):
        await table.put("a", "2", expected=0)
    with pytest.raises(Conflict):
        await table.put("a", "1", expected=0, anchor=anchor)


async def test_a_guard_is_checked_again(table: Table[str]) -> None:
    """A commit that was done already fails if its guard does not hold any more."""
    guard = Guard("texts", "home", await table.put("home", "me"))
    await table.commit([Put("a", "1", 0)], guards=[guard])
    await table.put("home", "other")

    with pytest.raises(GuardFailed):
        await table.commit([Put("a", "1", 0)], guards=[guard])
