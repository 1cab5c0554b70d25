"""What values hang on."""

import asyncio

import pytest

from kvplane_services.clock import SystemClock
from kvplane_services.errors import Unavailable
from kvplane_services.store.model import Put, Removed
from kvplane_services.store.ports import Store, Table
from tests.contract.store.waiting import changes, eventually, is_gone

# Seconds; etcd's own shortest is about two.
TTL = 2.0


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
