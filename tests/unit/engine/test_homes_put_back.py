"""Homes that the store has lost, and their way back."""

from kvplane_services.adapters.records import HOMES
from kvplane_services.engine.model import Home
from kvplane_services.errors import Conflict
from kvplane_services.store.model import Versioned
from tests.support.home_pair import Pair


async def test_a_lost_anchor_is_put_back(pair: Pair) -> None:
    """The home takes the engine again under a new anchor, and everything is to be written anew."""
    await pair.one.homes.take("d0", ttl=10)
    await pair.one.homes.take("d1", ttl=10)
    await pair.settle()
    lost = pair.one.homes.anchor("d0")

    pair.shared.end_anchor(lost)
    await pair.settle()

    assert pair.one.told.count("restored d0") == 2  # at first, and now
    assert pair.one.told.count("restored d1") == 1
    assert "lost d0" not in pair.one.told
    assert pair.one.homes.anchor("d0") != lost
    await pair.one.write("a", "1")


async def test_a_lost_anchor_is_put_back_before_the_watch_tells(pair: Pair) -> None:
    """Whoever keeps the anchor hears of it first."""
    await pair.one.homes.take("d0", ttl=10)
    await pair.settle()
    pair.one.store.table(HOMES).freeze()

    pair.shared.end_anchor(pair.one.homes.anchor("d0"))
    await pair.settle()

    assert pair.one.told.count("restored d0") == 2
    await pair.one.write("a", "1")


async def test_a_lost_anchor_of_an_engine_that_moved_is_not_put_back(pair: Pair) -> None:
    """The store says who has it, whatever the copy says."""
    await pair.one.homes.take("d0", ttl=10)
    await pair.settle()
    pair.one.store.table(HOMES).freeze()
    await pair.two.homes.take("d0", ttl=10)

    pair.one.store.anchors.report(pair.one.homes.anchor("d0"))
    await pair.settle()

    assert pair.one.told[-1] == "lost d0"
    await pair.two.write("a", "1")


async def test_a_store_that_lost_its_data(pair: Pair) -> None:
    """Each home is put back by its replica, though the store counts from the start again."""
    await pair.one.homes.take("d0", ttl=10)
    await pair.two.homes.take("d1", ttl=10)
    await pair.settle()

    pair.shared.lose_everything()
    await pair.settle()
    await pair.clock.advance(2)
    await pair.settle()

    for replica, engine_id in ((pair.one, "d0"), (pair.two, "d1")):
        assert replica.told.count(f"restored {engine_id}") == 2
        assert f"lost {engine_id}" not in replica.told
        await replica.write(engine_id, "1", engine_id)
    assert pair.two.homes.elsewhere("d0")
    assert pair.one.homes.elsewhere("d1")


async def test_a_home_record_that_vanished_is_put_back(pair: Pair) -> None:
    """Also if the anchor is not known to be lost."""
    await pair.one.homes.take("d0", ttl=10)
    await pair.settle()

    pair.shared.remove("homes", "d0")
    await pair.settle()

    assert pair.one.told.count("restored d0") == 2
    await pair.one.write("a", "1")


async def test_an_engine_that_moved_after_the_store_lost_its_data(pair: Pair) -> None:
    """Whoever has it by then keeps it; the old home learns of it."""
    await pair.one.homes.take("d0", ttl=10)
    await pair.settle()
    pair.one.store.cut()
    pair.shared.lose_everything()
    await pair.settle()
    await pair.two.homes.take("d0", ttl=10)

    pair.one.store.heal()
    await pair.settle()
    await pair.clock.advance(2)
    await pair.settle()

    assert pair.one.told[-1] == "lost d0"
    assert pair.two.homes.is_home("d0")
    await pair.two.write("a", "1")


async def test_putting_back_waits_for_the_store(pair: Pair) -> None:
    """A store that goes away again is asked again."""
    await pair.one.homes.take("d0", ttl=10)
    await pair.settle()
    pair.shared.end_anchor(pair.one.homes.anchor("d0"))
    pair.one.store.cut()
    await pair.settle()

    pair.one.store.heal()
    await pair.settle()
    await pair.clock.advance(2)

    await pair.one.write("a", "1")


async def test_putting_back_what_moves_at_that_moment(pair: Pair) -> None:
    """The watch may tell that an engine moved before the store says what is there."""
    await pair.one.homes.take("d0", ttl=10)
    await pair.settle()
    table = pair.one.store.table(HOMES)
    get = table.get

    async def answered_late(key: str, *, current: bool = False) -> Versioned[Home] | None:
        found = await get(key, current=current)
        if current:
            await pair.two.homes.take("d0", ttl=10)
            await pair.settle()
        return found

    table.get = answered_late  # type: ignore[method-assign]
    pair.one.store.anchors.report(pair.one.homes.anchor("d0"))
    await pair.settle()

    assert not pair.one.homes.is_home("d0")
    assert pair.one.told.count("lost d0") == 1
    await pair.two.write("a", "1")


async def test_putting_back_over_what_cannot_be_read(pair: Pair) -> None:
    """A home that is refused again and again is not tried without end in one go."""
    await pair.one.homes.take("d0", ttl=10)
    await pair.settle()
    table = pair.one.store.table(HOMES)
    put, refused = table.put, 0

    async def refuse(*_: object, **__: object) -> int:
        nonlocal refused
        refused += 1
        raise Conflict("somebody was faster")

    table.put = refuse  # type: ignore[method-assign]
    pair.shared.remove("homes", "d0")
    await pair.settle()
    for _ in range(20):
        await pair.clock.advance(0.5)

    assert 10 <= refused <= 25
    table.put = put  # type: ignore[method-assign]
    await pair.clock.advance(1)
    await pair.settle()
    await pair.one.write("a", "1")
