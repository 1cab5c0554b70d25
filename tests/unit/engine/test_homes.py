import asyncio
from typing import Any

import pytest

from kvplane_services.adapters.records import HOMES
from kvplane_services.errors import Conflict, GuardFailed, Unavailable
from kvplane_services.store.model import Put
from tests.support.home_pair import Pair, Replica


async def test_taking_an_engine_nobody_has(pair: Pair) -> None:
    """It is this replica's, with a guard and an anchor for its keys, and others know."""
    await pair.one.homes.take("d0", ttl=10)
    await pair.settle()

    assert pair.one.homes.is_home("d0")
    assert not pair.one.homes.elsewhere("d0")
    assert pair.two.homes.elsewhere("d0")
    assert not pair.two.homes.is_home("d0")
    await pair.one.write("a", "1")
    with pytest.raises(KeyError):
        pair.two.homes.guard("d0")


async def test_taking_what_one_has_does_nothing(pair: Pair) -> None:
    """A heartbeat at the engine's home costs no write."""
    await pair.one.homes.take("d0", ttl=10)
    writes = pair.shared.writes

    await pair.one.homes.take("d0", ttl=10)

    assert pair.shared.writes == writes
    assert pair.one.told.count("taken d0") == 1


async def test_an_engine_that_moves(pair: Pair) -> None:
    """Its keys stay on the anchor they are on, and the old home writes nothing more about it."""
    await pair.one.homes.take("d0", ttl=10)
    await pair.one.write("a", "1")
    anchor, guard = pair.one.homes.anchor("d0"), pair.one.homes.guard("d0")

    await pair.two.homes.take("d0", ttl=99)

    assert pair.two.homes.anchor("d0") == anchor
    assert pair.two.homes.ttl("d0") == 10
    assert pair.two.told == ["taken d0"]
    with pytest.raises(GuardFailed):
        await pair.one.texts.commit([Put("a", "2")], guards=[guard])
    await pair.settle()
    assert pair.one.told[-1] == "lost d0"
    assert pair.one.homes.elsewhere("d0")


async def test_its_keys_outlive_the_old_home(pair: Pair) -> None:
    """The new home keeps the anchor alive; the old one's end does not end it."""
    await pair.one.homes.take("d0", ttl=10)
    await pair.two.homes.take("d0", ttl=10)
    await pair.two.write("a", "1")
    pair.one.store.cut()

    await pair.clock.advance(60)
    pair.shared.lapse()

    assert await pair.two.texts.get("a") is not None


async def test_an_old_home_keeps_nothing_alive(pair: Pair) -> None:
    """An engine that moved vanishes with its new home."""
    await pair.one.homes.take("d0", ttl=10)
    await pair.two.homes.take("d0", ttl=10)
    await pair.settle()

    pair.two.store.cut()
    await pair.clock.advance(20)
    pair.shared.lapse()

    assert await pair.one.store.table(HOMES).get("d0") is None


async def test_keys_outlive_a_home_that_died_by_the_engines_ttl(pair: Pair) -> None:
    """An engine finds its registration for as long as it lasts; then it vanishes.

    Even if the home died a third of the TTL after its last word to the store.
    """
    await pair.one.homes.take("d0", ttl=10)
    anchor = pair.shared.anchors[pair.one.homes.anchor("d0")]
    assert anchor.ttl * 2 / 3 >= 10

    pair.one.store.cut()
    await pair.clock.advance(anchor.ttl)
    pair.shared.lapse()

    assert await pair.two.store.table(HOMES).get("d0") is None
    await pair.settle()
    assert not pair.two.homes.elsewhere("d0")


async def test_a_decision_on_an_old_copy_is_made_again() -> None:
    """Who takes an engine that has just moved takes it from where it is."""
    pair = Pair()
    await pair.one.homes.take("d0", ttl=10)
    stale = pair.two.store.table(HOMES)
    stale.freeze()
    await pair.one.homes.take("d0", ttl=20, renew=True)

    async def catch_up() -> None:
        stale.thaw()

    pair.two.store.ask = catch_up  # type: ignore[method-assign]
    await pair.two.homes.take("d0", ttl=10)

    assert pair.two.homes.ttl("d0") == 20


async def test_a_decision_on_an_old_copy_can_be_left_at_that() -> None:
    """Who does not insist leaves the engine to whoever was quicker."""
    pair = Pair()
    stale = pair.two.store.table(HOMES)
    stale.freeze()
    await pair.one.homes.take("d0", ttl=10)

    with pytest.raises(Conflict):
        await pair.two.homes.take("d0", ttl=10, insist=False)

    assert not pair.two.homes.is_home("d0")
    await pair.one.write("a", "1")


async def test_two_that_take_at_the_same_time(pair: Pair) -> None:
    """One becomes home; the other knows that it is not."""
    await asyncio.gather(
        pair.one.homes.take("d0", ttl=10), pair.two.homes.take("d0", ttl=10), return_exceptions=True
    )
    await pair.settle()

    assert [each.homes.is_home("d0") for each in (pair.one, pair.two)].count(True) == 1


async def test_a_store_that_is_away(pair: Pair) -> None:
    """Nobody becomes an engine's home, and who was stays it."""
    await pair.one.homes.take("d0", ttl=10)
    for each in (pair.one, pair.two):
        each.store.cut()

    with pytest.raises(Unavailable):
        await pair.two.homes.take("d0", ttl=10)
    with pytest.raises(Unavailable):
        await pair.two.homes.take("d1", ttl=10)

    assert pair.one.homes.is_home("d0")
    assert not pair.two.homes.is_home("d0")
    pair.two.store.heal()
    await pair.two.homes.take("d0", ttl=10)
    assert pair.two.homes.is_home("d0")


async def test_leaving(pair: Pair) -> None:
    """What still hangs on the engine's anchor is removed, and nobody is its home."""
    await pair.one.homes.take("d0", ttl=10)
    await pair.one.write("a", "1")

    await pair.one.homes.leave("d0")
    await pair.one.homes.leave("d0")
    await pair.settle()

    assert await pair.two.texts.get("a") is None
    assert not pair.two.homes.elsewhere("d0")
    assert pair.one.told[-1] == "lost d0"
    assert not pair.shared.anchors


async def test_leaving_what_has_moved(pair: Pair) -> None:
    """A replica that does not know yet that an engine moved removes nothing of it."""
    await pair.one.homes.take("d0", ttl=10)
    await pair.one.write("a", "1")
    await pair.two.homes.take("d0", ttl=10)

    await pair.one.homes.leave("d0")
    await pair.settle()

    assert await pair.two.texts.get("a") is not None
    assert pair.two.homes.is_home("d0")


async def test_a_registration_with_a_longer_ttl(pair: Pair) -> None:
    """Its keys move to an anchor that outlives it."""
    await pair.one.homes.take("d0", ttl=10)
    await pair.one.homes.take("d0", ttl=100, renew=True)

    assert pair.shared.anchors[pair.one.homes.anchor("d0")].ttl >= 150
    assert pair.one.told.count("taken d0") == 1
    assert pair.one.told[-1] == "restored d0"
    assert pair.one.homes.ttl("d0") == 100


async def test_a_claim_whose_answer_was_lost(pair: Pair) -> None:
    """A home that was written without this replica's knowing is taken, not fought over."""
    await pair.one.homes.take("d0", ttl=10)
    again = Replica("one", pair.shared)

    await again.homes.take("d0", ttl=10)

    assert again.homes.is_home("d0")


async def test_leaving_what_moves_at_that_moment(pair: Pair) -> None:
    """The watch may tell that an engine moved before the store refuses to let go of it."""
    await pair.one.homes.take("d0", ttl=10)
    await pair.settle()
    table = pair.one.store.table(HOMES)
    delete = table.delete

    async def refused_late(key: str, *, expected: int | None = None) -> bool:
        await pair.two.homes.take("d0", ttl=10)
        await pair.settle()
        return await delete(key, expected=expected)

    table.delete = refused_late  # type: ignore[method-assign]
    await pair.one.homes.leave("d0")
    await pair.settle()

    assert pair.one.told.count("lost d0") == 1
    await pair.two.write("a", "1")


async def test_a_take_that_is_answered_late(pair: Pair) -> None:
    """Who was replaced before it heard that it had become home is none, and knows."""
    table = pair.one.store.table(HOMES)
    put = table.put

    async def answered_late(*given: Any, **named: Any) -> int:
        revision = await put(*given, **named)
        await pair.two.homes.take("d0", ttl=10)
        await pair.settle()
        return revision

    table.put = answered_late  # type: ignore[method-assign]
    with pytest.raises(Conflict):
        await pair.one.homes.take("d0", ttl=10)

    assert not pair.one.homes.is_home("d0")
    assert pair.one.told[-1] == "lost d0"
    await pair.two.write("a", "1")


async def test_conflict_is_told(pair: Pair) -> None:
    """Who loses a race twice says so, and is not home."""
    table = pair.two.store.table(HOMES)

    async def refuse(*_: object, **__: object) -> int:
        raise Conflict("somebody was faster")

    table.put = refuse  # type: ignore[method-assign]

    with pytest.raises(Conflict):
        await pair.two.homes.take("d0", ttl=10)

    assert not pair.two.homes.is_home("d0")
