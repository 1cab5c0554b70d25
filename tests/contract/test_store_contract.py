"""What every store promises. A new adapter joins by adding a parameter to `opener`."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from kvplane_services.clock import SystemClock
from kvplane_services.errors import Conflict, GuardFailed, Saturated, Unavailable, WatchTooOld
from kvplane_services.store.feeds import TableFeed
from kvplane_services.store.model import Delete, Event, Guard, Put, Removed, Reset, Synced, Upserted
from kvplane_services.store.ports import MAX_CHANGES, MAX_GUARDS, Store, Table
from tests.contract import store_kinds
from tests.contract.store_kinds import BACKLOG, Opener, Server
from tests.support.store_values import TEXTS, texts

# Seconds; etcd's own shortest is about two.
TTL = 2.0
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


@pytest.fixture(
    params=[
        pytest.param(store_kinds.memory, id="memory"),
        pytest.param(store_kinds.fake_etcd, id="fake-etcd"),
        pytest.param(store_kinds.etcd, id="etcd"),
        pytest.param(store_kinds.etcd3, id="etcd3"),
    ]
)
async def opener(request: pytest.FixtureRequest) -> AsyncIterator[Opener]:
    make: Callable[[AsyncExitStack, Server], Awaitable[Opener]] = request.param
    async with AsyncExitStack() as stack:
        yield await make(stack, lambda: request.getfixturevalue("etcd_node"))


@pytest.fixture
async def store(opener: Opener) -> Store:
    return await opener()


@pytest.fixture
async def other(opener: Opener, store: Store) -> Store:
    """What another process has on the same data."""
    return await opener()


@pytest.fixture
def table(store: Store) -> Table[str]:
    return store.table(TEXTS)


@pytest.fixture
def others_table(other: Store) -> Table[str]:
    return other.table(TEXTS)


async def take(events: AsyncIterator[Event[str]], count: int) -> list[Event[str]]:
    """The next events."""
    return [await asyncio.wait_for(anext(events), 10) for _ in range(count)]


async def changes(events: AsyncIterator[Event[str]], count: int) -> list[Upserted[str] | Removed]:
    """The next events that are no bookmarks."""
    found: list[Upserted[str] | Removed] = []
    while len(found) < count:
        (event,) = await take(events, 1)
        if isinstance(event, Upserted | Removed):
            found.append(event)
    return found


async def eventually(check: Callable[[], Awaitable[bool]], *, seconds: float = 15) -> None:
    """Waits until something is so."""
    async with asyncio.timeout(seconds):
        while not await check():
            await SystemClock().sleep(0.02)


async def is_gone(table: Table[str], key: str) -> bool:
    return await table.get(key) is None


# -- Reading and writing -------------------------------------------------------------------------


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


# -- Several at once -----------------------------------------------------------------------------


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


# -- Attempts whose answer was lost --------------------------------------------------------------


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


# -- Watching ------------------------------------------------------------------------------------


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


# -- Two processes -------------------------------------------------------------------------------


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


# -- Sequences -----------------------------------------------------------------------------------


async def test_sequence_grows(store: Store) -> None:
    """Each number is larger than the one before, and larger than the time of day would give."""
    sequence = store.sequence("numbers")
    before = int(SystemClock().wall().timestamp() * 1_000_000)

    numbers = [await sequence.next() for _ in range(20)]

    assert sorted(set(numbers)) == numbers
    assert numbers[0] >= before


async def test_sequences_are_apart(store: Store) -> None:
    """Several numbers drawn at once follow each other, and belong to nobody else."""
    first = await store.sequence("blocks").next(10)
    second = await store.sequence("blocks").next()
    assert second >= first + 10


async def test_sequences_of_two_processes(store: Store, other: Store) -> None:
    """Numbers drawn at once are all different, and those drawn later are larger, whoever draws."""
    sequences = [store.sequence("numbers"), other.sequence("numbers")]
    latest = 0
    for _ in range(5):
        firsts = await asyncio.gather(
            *(sequences[n % 2].next(count) for n, count in enumerate((1, 3, 1, 2, 1, 4)))
        )
        numbers = sorted(
            itertools.chain(
                *(range(f, f + c) for f, c in zip(firsts, (1, 3, 1, 2, 1, 4), strict=True))
            )
        )
        assert len(set(numbers)) == 12
        assert numbers[0] > latest
        latest = numbers[-1]


# -- Anchors -------------------------------------------------------------------------------------


async def test_values_go_with_an_anchor_that_nobody_keeps(table: Table[str], store: Store) -> None:
    """After an anchor's TTL its values vanish, those moved off it and others stay."""
    started = SystemClock().now()
    anchor = await store.anchors.open(TTL, keep=False)
    revision = await table.put("a", "1", anchor=anchor)
    await table.put("moved", "1", anchor=anchor)
    await table.put("moved", "2")
    await table.put("b", "1")
    events = table.watch(after=revision)

    await eventually(lambda: is_gone(table, "a"))

    assert SystemClock().now() - started >= TTL
    assert await table.get("moved", current=True) is not None
    assert await table.get("b", current=True) is not None
    told = await changes(events, 4)
    assert isinstance(told[-1], Removed)
    assert told[-1].key == "a"


async def test_values_stay_while_their_anchor_is_kept(table: Table[str], store: Store) -> None:
    """An anchor that is kept outlives its TTL, until it is dropped."""
    anchor = await store.anchors.open(TTL)
    await table.put("a", "1", anchor=anchor)

    await SystemClock().sleep(1.75 * TTL)
    assert await table.get("a", current=True) is not None

    store.anchors.drop(anchor)
    await eventually(lambda: is_gone(table, "a"))


async def test_an_anchor_is_kept_by_another_process(
    table: Table[str], store: Store, other: Store
) -> None:
    """Who knows an anchor's name keeps it, when the one who made it no longer does."""
    anchor = await store.anchors.open(TTL)
    await table.put("a", "1", anchor=anchor)
    other.anchors.keep(anchor, TTL)
    other.anchors.keep(anchor, TTL)
    store.anchors.drop(anchor)
    store.anchors.drop(anchor)
    if other is store:
        other.anchors.keep(anchor, TTL)

    await SystemClock().sleep(1.75 * TTL)

    assert await table.get("a", current=True) is not None


async def test_a_revoked_anchor_takes_its_values_along(table: Table[str], store: Store) -> None:
    """Revoking removes all values of an anchor at once, and again does nothing."""
    anchor = await store.anchors.open(60.0)
    await table.commit([Put("a", "1", anchor=anchor), Put("b", "1", anchor=anchor), Put("c", "1")])

    await store.anchors.revoke(anchor)
    await store.anchors.revoke(anchor)

    assert await table.get("a", current=True) is None
    await eventually(lambda: is_gone(table, "b"))
    assert [item.key for item in (await table.list()).items] == ["c"]


async def test_a_lost_anchor_is_told_of_once_to_each_reader(store: Store, other: Store) -> None:
    """Whoever keeps an anchor that another process revoked is told, in every part of it."""
    kept, gone = await store.anchors.open(TTL), await store.anchors.open(TTL)
    readers = [other.anchors.lost(), other.anchors.lost()]
    await store.anchors.revoke(gone)

    other.anchors.keep(kept, TTL)
    other.anchors.keep(gone, TTL)

    for reader in readers:
        assert await asyncio.wait_for(anext(reader), 5) == gone
    again = asyncio.ensure_future(anext(readers[0]))
    await asyncio.wait((again,), timeout=TTL)
    assert not again.done()
    again.cancel()


async def test_a_write_on_a_lost_anchor_is_refused(table: Table[str], store: Store) -> None:
    """What would hang on nothing is not written, and the anchor is told of as lost."""
    anchor = await store.anchors.open(60.0)
    await store.anchors.revoke(anchor)
    lost = store.anchors.lost()

    with pytest.raises(Unavailable):
        await table.commit([Put("a", "1", anchor=anchor), Put("b", "1")])

    assert await asyncio.wait_for(anext(lost), 5) == anchor
    assert await table.get("b", current=True) is None
    assert store.reachable


async def test_names_of_other_stores_anchors_are_lost(table: Table[str], store: Store) -> None:
    """What is no anchor of this store at all is told of as lost."""
    lost = store.anchors.lost()

    store.anchors.keep("no anchor", TTL)
    with pytest.raises(Unavailable):
        await table.put("a", "1", anchor="none either")

    assert await asyncio.wait_for(anext(lost), 5) == "no anchor"
    assert await asyncio.wait_for(anext(lost), 5) == "none either"
