"""Engines and several replicas: where they live, how they move, and what all of them see."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from kvplane_services.adapters.records import ENGINES, HOMES
from kvplane_services.engine.answers import HeartbeatAnswer, HeartbeatOutcome
from kvplane_services.engine.model import Engine, EngineLoad, EngineState, KvLayout, Role
from kvplane_services.engine.registration import DirectoryConfig
from kvplane_services.errors import (
    AlreadyExists,
    Conflict,
    EngineIncompatible,
    EpochStale,
    NotFound,
    Saturated,
    Unavailable,
)
from kvplane_services.store.paging import PageRequest
from tests.support.state_plane import Replicas
from tests.support.state_values import engine_of, stock_engine


class Fleet(Replicas):
    """Three replicas' directories."""

    def __init__(self, **config: float) -> None:
        super().__init__(3, directory=DirectoryConfig(**config))  # type: ignore[arg-type]

    async def register(self, at: int, engine: Engine | None = None, *, ttl: float = 0.0) -> Engine:
        """Registers an engine, and lets the others see it."""
        registration = await self.planes[at].directory.register(engine or engine_of(), ttl=ttl)
        await self.settle()
        return registration.engine

    async def beat(
        self, at: int, engine: Engine, load: EngineLoad | None = None
    ) -> HeartbeatAnswer:
        """Sends a heartbeat."""
        return await self.planes[at].directory.heartbeat(engine.engine_id, engine.epoch, load)

    async def live(self, at: int, engine: Engine, seconds: float) -> None:
        """Sends heartbeats for a while."""
        for _ in range(round(seconds)):
            assert (await self.beat(at, engine)).outcome is HeartbeatOutcome.RENEWED
            await self.advance(1)

    def states(self, engine_id: str = "d0") -> list[EngineState | None]:
        """The engine's state as each replica tells it."""
        found = [plane.directory.find(engine_id) for plane in self.planes]
        return [engine.state if engine else None for engine in found]

    def home(self, engine_id: str = "d0") -> list[bool]:
        """Which replica believes that it is the engine's home."""
        return [plane.homes.is_home(engine_id) for plane in self.planes]

    def left(self) -> set[tuple[str, str]]:
        """What of engines hangs on any anchor."""
        hanging = {value for anchor in self.shared.anchors.values() for value in anchor.values}
        return {(table, key) for table, key in hanging if table in {"engines", "homes"}}

    def hangs_on_its_home(self, engine_id: str) -> bool:
        """Whether an engine hangs on the anchor that its home keeps."""
        home = self.planes[self.home(engine_id).index(True)].homes
        return ("engines", engine_id) in self.shared.anchors[home.anchor(engine_id)].values

    async def stored(self, engine_id: str = "d0") -> Engine | None:
        """What the store holds."""
        found = await self.shared.memory.table(ENGINES).get(engine_id)
        return found.value if found else None


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        fleet = Fleet()
        await stack.enter_async_context(fleet.running())
        yield fleet


ALIVE = [EngineState.ACTIVE] * 3
LOAD = EngineLoad(running_requests=7)


# -- Anywhere --------------------------------------------------------------------------------


async def test_every_replica_tells_of_every_engine(fleet: Fleet) -> None:
    """An engine is found and listed wherever it registered."""
    await fleet.register(0, engine_of("d0"))
    await fleet.register(1, engine_of("d1"))

    for plane in fleet.planes:
        page = await plane.directory.list(PageRequest())
        assert [engine.engine_id for engine in page.items] == ["d0", "d1"]
        assert plane.directory.get("d0").expire_time is not None


async def test_partners_are_those_at_other_replicas_too(fleet: Fleet) -> None:
    """What cannot exchange blocks is refused wherever it registers."""
    await fleet.register(0, engine_of("p0", role=Role.PREFILL))

    with pytest.raises(EngineIncompatible):
        await fleet.register(1, engine_of(layout=KvLayout(block_size=128, total_blocks=1)))


async def test_the_number_of_engines_is_bounded_over_all_replicas() -> None:
    """Three replicas hold no more than one."""
    fleet = Fleet(max_engines=1)
    async with fleet.running():
        await fleet.register(0, engine_of("d0"))

        with pytest.raises(Saturated):
            await fleet.register(1, engine_of("d1"))

        await fleet.register(2, engine_of("d0"))


# -- Moving ----------------------------------------------------------------------------------


async def test_a_heartbeat_elsewhere_moves_the_engine(fleet: Fleet) -> None:
    """It goes on there with its epoch, its TTL and its load, and nobody calls it lost."""
    engine = await fleet.register(0, ttl=9.0)
    await fleet.beat(0, engine, LOAD)
    await fleet.settle()

    answer = await fleet.beat(1, engine)
    await fleet.settle()

    assert answer.outcome is HeartbeatOutcome.RENEWED
    assert answer.ttl == 9.0
    assert answer.engine is not None
    assert (answer.engine.epoch, answer.engine.load) == (engine.epoch, LOAD)
    assert fleet.home() == [False, True, False]
    await fleet.live(1, engine, 30)
    assert fleet.states() == ALIVE


async def test_an_engine_moves_before_others_have_seen_it(fleet: Fleet) -> None:
    """Its new home asks the store itself when its copy does not know."""
    fleet.stores[1].table(ENGINES).freeze()
    engine = (await fleet.planes[0].directory.register(engine_of())).engine
    fleet.stores[1].table(ENGINES).thaw()

    assert (await fleet.beat(1, engine)).outcome is HeartbeatOutcome.RENEWED


async def test_a_registration_elsewhere_fences_the_old_one_everywhere(fleet: Fleet) -> None:
    """Whichever replica a frame of the old epoch comes to."""
    old = await fleet.register(0)
    new = await fleet.register(1)

    outcomes = [(await fleet.beat(at, old)).outcome for at in range(3)]

    assert new.epoch > old.epoch
    assert outcomes == [HeartbeatOutcome.FENCED] * 3
    assert fleet.home() == [False, True, False]
    assert (await fleet.beat(0, new)).outcome is HeartbeatOutcome.RENEWED


async def test_a_new_epoch_is_never_fenced_by_an_old_copy(fleet: Fleet) -> None:
    """A replica that has not seen the registration says so, and not that it is over."""
    await fleet.register(0)
    fleet.stores[0].table(ENGINES).freeze()
    new = (await fleet.planes[1].directory.register(engine_of())).engine
    fleet.stores[0].table(ENGINES).thaw()

    with pytest.raises(Unavailable):
        await fleet.beat(0, new)

    await fleet.settle()
    assert (await fleet.beat(0, new)).outcome is HeartbeatOutcome.RENEWED


async def test_a_replica_that_died_is_survived(fleet: Fleet) -> None:
    """An engine that finds another within its TTL goes on with its registration."""
    engine = await fleet.register(0)
    fleet.stores[0].cut()
    await fleet.advance(14)

    assert (await fleet.beat(1, engine)).outcome is HeartbeatOutcome.RENEWED
    await fleet.live(1, engine, 60)

    assert (await fleet.stored()) is not None
    assert fleet.states()[1:] == ALIVE[1:]


async def test_an_engine_that_died_with_its_home_vanishes(fleet: Fleet) -> None:
    """Nobody calls it lost, and nobody tells of it for ever."""
    await fleet.register(0)
    fleet.stores[0].cut()

    await fleet.advance(40)

    assert fleet.states()[1:] == [None, None]


async def test_a_vanished_engine_that_beats_again_is_put_back(fleet: Fleet) -> None:
    """The store may have lost it: a live engine keeps its epoch."""
    engine = await fleet.register(0)
    fleet.stores[0].cut()
    fleet.shared.end_anchor(fleet.planes[0].homes.anchor("d0"))
    await fleet.settle()
    assert fleet.states()[1:] == [None, None]

    assert (await fleet.beat(1, engine)).outcome is HeartbeatOutcome.RENEWED
    await fleet.settle()

    assert fleet.states()[1:] == ALIVE[1:]
    stored = await fleet.stored()
    assert stored is not None
    assert stored.epoch == engine.epoch


async def test_only_its_home_calls_an_engine_lost(fleet: Fleet) -> None:
    """And all see it; then it has to register again, anywhere."""
    engine = await fleet.register(0)

    await fleet.advance(16)

    assert fleet.states() == [EngineState.LOST] * 3
    assert (await fleet.beat(1, engine)).outcome is HeartbeatOutcome.NOT_FOUND
    await fleet.register(2)
    assert fleet.states() == ALIVE


async def test_an_engine_that_moves_after_it_was_lost(fleet: Fleet) -> None:
    """It has to register again, though its new home had not seen the loss; it is not forgotten."""
    engine = await fleet.register(0)
    fleet.stores[1].table(ENGINES).freeze()
    await fleet.advance(16)

    assert (await fleet.beat(1, engine)).outcome is HeartbeatOutcome.NOT_FOUND
    fleet.stores[1].table(ENGINES).thaw()
    await fleet.advance(60)

    assert fleet.states() == [EngineState.LOST] * 3


async def test_a_lost_engine_is_forgotten_though_its_home_dies() -> None:
    """Its record lapses by itself."""
    fleet = Fleet(remember_lost=60)
    async with fleet.running():
        await fleet.register(0)
        await fleet.advance(16)
        fleet.stores[0].cut()

        await fleet.advance(50)
        assert fleet.states()[1:] == [EngineState.LOST] * 2
        await fleet.advance(20)

        assert fleet.states()[1:] == [None, None]


async def test_a_lost_engine_is_forgotten_by_its_home() -> None:
    """Nothing of it stays in the store."""
    fleet = Fleet(remember_lost=60)
    async with fleet.running():
        await fleet.register(0)
        await fleet.advance(90)

        assert fleet.states() == [None] * 3
        assert not fleet.planes[0].homes.is_home("d0")
        assert not fleet.left()
        assert all(anchor.ttl != 60 for anchor in fleet.shared.anchors.values())


async def test_a_cut_replica_calls_nobody_lost_who_moved(fleet: Fleet) -> None:
    """What it believed meanwhile is not written when it comes back."""
    engine = await fleet.register(0)
    fleet.stores[0].cut()
    await fleet.live(1, engine, 20)
    assert fleet.states()[0] is EngineState.LOST

    fleet.stores[0].heal()
    for _ in range(10):
        await fleet.live(1, engine, 1)
        stored = await fleet.stored()
        assert stored is not None
        assert stored.state is EngineState.ACTIVE

    assert fleet.states() == ALIVE
    assert fleet.home() == [False, True, False]


async def test_a_replica_that_knows_of_nothing_writes_nothing_over_the_new_home() -> None:
    """Neither a load nor a loss: the store refuses what comes from a home of before."""
    fleet = Fleet()  # No loop runs: nobody tells the old home.
    old, new = (plane.directory for plane in fleet.planes[:2])
    engine = await fleet.register(0)
    fleet.stores[0].cut()
    await old.heartbeat("d0", engine.epoch, LOAD)
    await new.heartbeat("d0", engine.epoch)

    fleet.stores[0].heal()
    await old.sweep()
    stored = await fleet.stored()
    assert stored is not None
    assert stored.load != LOAD

    await fleet.clock.advance(16)
    await old.sweep()
    await old.sweep()
    assert old.get("d0").state is EngineState.LOST
    stored = await fleet.stored()
    assert stored is not None
    assert stored.state is EngineState.ACTIVE


async def test_two_that_take_an_engine_at_the_same_time(fleet: Fleet) -> None:
    """One has it; no epoch is spent, and nobody is fenced."""
    engine = await fleet.register(0)

    answers = await asyncio.gather(
        fleet.beat(1, engine), fleet.beat(2, engine), return_exceptions=True
    )
    await fleet.settle()

    assert fleet.home().count(True) == 1
    for answer in answers:
        if not isinstance(answer, HeartbeatAnswer):
            assert isinstance(answer, Conflict)
        else:
            assert answer.outcome is HeartbeatOutcome.RENEWED


# -- Ends ------------------------------------------------------------------------------------


async def test_deregistering_anywhere(fleet: Fleet) -> None:
    """It ends at once and for all, and leaves nothing behind."""
    engine = await fleet.register(0)

    await fleet.planes[1].directory.deregister("d0", engine.epoch)
    await fleet.settle()
    assert fleet.states() == [None] * 3
    await fleet.advance(5)

    assert not any(fleet.home())
    assert not fleet.left()
    assert (await fleet.beat(1, engine)).outcome is HeartbeatOutcome.NOT_FOUND


async def test_an_earlier_self_cannot_deregister_anywhere(fleet: Fleet) -> None:
    """Also where its successor is not at home."""
    old = await fleet.register(0)
    await fleet.register(1)

    for plane in fleet.planes:
        with pytest.raises(EpochStale):
            await plane.directory.deregister("d0", old.epoch)

    assert fleet.states() == ALIVE


async def test_a_lost_engine_can_be_deregistered_anywhere(fleet: Fleet) -> None:
    """An operator need not know where it was."""
    engine = await fleet.register(0)
    await fleet.advance(16)

    await fleet.planes[1].directory.deregister("d0", engine.epoch)
    await fleet.settle()

    assert fleet.states() == [None] * 3


async def test_an_engine_that_registers_again_at_once_is_not_left(fleet: Fleet) -> None:
    """The end of its earlier self does not take the new one along."""
    engine = await fleet.register(0)
    await fleet.planes[0].directory.deregister("d0", engine.epoch)

    again = await fleet.register(0)
    await fleet.live(0, again, 5)

    assert fleet.states() == ALIVE


# -- Draining --------------------------------------------------------------------------------


async def test_draining_anywhere(fleet: Fleet) -> None:
    """The engine hears of it from its home, wherever the operator asked."""
    engine = await fleet.register(0)
    await fleet.beat(0, engine, LOAD)

    drained = await fleet.planes[1].directory.drain("d0")
    assert fleet.hangs_on_its_home("d0")
    again = await fleet.planes[1].directory.drain("d0")
    await fleet.settle()

    assert drained.state is again.state is EngineState.DRAINING
    assert (await fleet.beat(0, engine)).drain_requested
    assert fleet.states() == [EngineState.DRAINING] * 3
    assert (await fleet.planes[2].directory.resume("d0")).state is EngineState.ACTIVE
    await fleet.settle()
    assert not (await fleet.beat(0, engine)).drain_requested


async def test_an_order_hangs_where_its_engine_hangs(fleet: Fleet) -> None:
    """Also if the operator's replica does not know yet that this is another place than before."""
    await fleet.register(0)
    fleet.stores[1].table(HOMES).freeze()
    fleet.shared.remove("homes", "d0")
    await fleet.settle()

    await fleet.planes[1].directory.drain("d0")

    assert fleet.hangs_on_its_home("d0")


async def test_an_order_is_not_written_over_a_newer_registration(fleet: Fleet) -> None:
    """Though the operator's replica has not seen it."""
    await fleet.register(0)
    fleet.stores[1].table(ENGINES).freeze()
    new = await fleet.register(0)

    drained = await fleet.planes[1].directory.drain("d0")

    assert drained.epoch == new.epoch
    stored = await fleet.stored()
    assert stored is not None
    assert (stored.epoch, stored.drain_requested) == (new.epoch, True)


async def test_a_load_on_its_way_does_not_undo_a_drain(fleet: Fleet) -> None:
    """The home writes what it has to say on top of the order, not over it."""
    engine = await fleet.register(0)
    await fleet.beat(0, engine, EngineLoad(running_requests=1))
    await fleet.beat(0, engine, LOAD)

    await fleet.planes[1].directory.drain("d0")
    await fleet.live(0, engine, 3)

    stored = await fleet.stored()
    assert stored is not None
    assert (stored.state, stored.load) == (EngineState.DRAINING, LOAD)
    assert (await fleet.beat(0, engine)).drain_requested


async def test_a_drain_at_the_home_while_the_store_is_away(fleet: Fleet) -> None:
    """It counts at once, and is written once the store is back."""
    engine = await fleet.register(0)
    fleet.stores[0].cut()

    with pytest.raises(Unavailable):
        await fleet.planes[0].directory.drain("d0")

    assert (await fleet.beat(0, engine)).drain_requested
    fleet.stores[0].heal()
    await fleet.live(0, engine, 3)
    assert fleet.states() == [EngineState.DRAINING] * 3


async def test_a_draining_engine_that_moves_drains_on(fleet: Fleet) -> None:
    """Its new home knows of the order."""
    engine = await fleet.register(0)
    await fleet.planes[2].directory.drain("d0")
    await fleet.settle()

    assert (await fleet.beat(1, engine)).drain_requested


async def test_a_lost_engine_that_comes_back_elsewhere_drains_on(fleet: Fleet) -> None:
    """Unless it was restarted."""
    described = engine_of()
    await fleet.register(0, described)
    await fleet.planes[1].directory.drain("d0")
    await fleet.settle()
    await fleet.advance(16)
    assert fleet.states() == [EngineState.LOST] * 3

    assert (await fleet.register(2, described)).state is EngineState.DRAINING
    assert (await fleet.register(1)).state is EngineState.ACTIVE


@pytest.mark.parametrize("verb", ["drain", "resume"])
async def test_orders_for_lost_engines_are_not_found(fleet: Fleet, verb: str) -> None:
    """As at its home."""
    await fleet.register(0)
    await fleet.advance(16)

    with pytest.raises(NotFound):
        await getattr(fleet.planes[1].directory, verb)("d0")


# -- Loads -----------------------------------------------------------------------------------


async def test_heartbeats_are_not_written(fleet: Fleet) -> None:
    """Renewing an engine for a minute costs the store nothing."""
    engine = await fleet.register(0)
    await fleet.beat(0, engine, LOAD)
    await fleet.advance(2)
    writes = fleet.shared.writes

    for _ in range(60):
        await fleet.beat(0, engine, LOAD)
        await fleet.advance(1)

    assert fleet.shared.writes == writes


async def test_loads_are_written_together_and_not_too_often(fleet: Fleet) -> None:
    """Ten engines that report another load twenty times a second are one write a second."""
    engines = [await fleet.register(0, engine_of(f"d{number}")) for number in range(10)]
    await fleet.advance(2)
    writes = fleet.shared.writes

    for tick in range(100):
        for engine in engines:
            load = EngineLoad(running_requests=tick)
            answer = await fleet.beat(0, engine, load)
            assert answer.engine is not None
            assert answer.engine.load == load
        await fleet.advance(0.05, step=0.05)
    assert fleet.shared.writes - writes <= 8

    await fleet.advance(2)
    for engine in engines:
        await fleet.beat(0, engine)
        assert fleet.planes[1].directory.get(engine.engine_id).load.running_requests == 99


async def test_a_load_is_told_at_once_where_none_was_lately(fleet: Fleet) -> None:
    """A small fleet is not kept waiting."""
    engine = await fleet.register(0)

    await fleet.beat(0, engine, LOAD)
    await fleet.settle()

    assert fleet.planes[1].directory.get("d0").load == LOAD


# -- The store away ---------------------------------------------------------------------------


async def test_heartbeats_are_answered_while_the_store_is_away(fleet: Fleet) -> None:
    """From memory, at once; new loads are written later, and nobody is lost."""
    engine = await fleet.register(0)
    fleet.stores[0].cut(hangs=5.0)

    for tick in range(40):
        answer = asyncio.ensure_future(fleet.beat(0, engine, EngineLoad(running_requests=tick)))
        await fleet.clock.advance(0)
        assert answer.done()
        assert answer.result().outcome is HeartbeatOutcome.RENEWED
        await fleet.advance(1)

    fleet.stores[0].heal()
    await fleet.live(0, engine, 10)
    assert fleet.states() == ALIVE
    assert fleet.planes[1].directory.get("d0").load.running_requests == 39


async def test_a_store_that_hangs_holds_no_heartbeat_for_long(fleet: Fleet) -> None:
    """Not even before anybody has noticed that it is away."""
    engine = await fleet.register(0)
    fleet.stores[0].cut(hangs=5.0, notices=False)

    answer = asyncio.ensure_future(fleet.beat(0, engine, LOAD))
    await fleet.settle()
    assert not answer.done()
    await fleet.clock.advance(0.25)

    assert answer.done()
    fleet.stores[0].heal()


async def test_what_needs_the_store_is_refused_while_it_is_away(fleet: Fleet) -> None:
    """Registering and moving home; nothing of it is done by half."""
    engine = await fleet.register(0)
    for store in fleet.stores:
        store.cut()

    with pytest.raises(Unavailable):
        await fleet.planes[1].directory.register(engine_of("d1"))
    with pytest.raises(Unavailable):
        await fleet.beat(1, engine)
    with pytest.raises(Unavailable):
        await fleet.planes[1].directory.drain("d0")

    assert (await fleet.beat(0, engine)).outcome is HeartbeatOutcome.RENEWED
    for store in fleet.stores:
        store.heal()
    await fleet.live(0, engine, 3)
    assert fleet.states("d1") == [None] * 3
    assert fleet.home("d1") == [False] * 3


async def test_an_engine_that_falls_silent_while_the_store_is_away(fleet: Fleet) -> None:
    """Its home knows at its TTL, and tells the others once the store is back."""
    await fleet.register(0)
    fleet.stores[0].cut()
    await fleet.advance(16)
    assert fleet.states()[0] is EngineState.LOST

    fleet.stores[0].heal()
    await fleet.advance(3)

    assert fleet.states() == [EngineState.LOST] * 3


# -- The store's losses -----------------------------------------------------------------------


async def test_a_store_that_lost_its_data_gets_everything_back(fleet: Fleet) -> None:
    """Live and lost engines alike, from their homes, with their epochs."""
    one = await fleet.register(0, engine_of("d0"))
    two = await fleet.register(1, engine_of("d1"))
    await fleet.register(2, engine_of("d2"), ttl=3.0)
    await fleet.planes[0].directory.drain("d1")
    await fleet.advance(4)
    assert fleet.states("d2") == [EngineState.LOST] * 3

    fleet.shared.lose_everything()
    for _ in range(5):
        assert (await fleet.beat(0, one)).outcome is HeartbeatOutcome.RENEWED
        assert (await fleet.beat(1, two)).outcome is HeartbeatOutcome.RENEWED
        await fleet.advance(1)

    assert fleet.states("d0") == ALIVE
    assert fleet.states("d1") == [EngineState.DRAINING] * 3
    assert fleet.states("d2") == [EngineState.LOST] * 3
    assert fleet.planes[2].directory.get("d0").epoch == one.epoch
    assert (await fleet.register(1, engine_of("d0"))).epoch > one.epoch


async def test_an_anchor_that_was_lost_is_put_back(fleet: Fleet) -> None:
    """The engine is there again, on another one, and lives."""
    engine = await fleet.register(0)

    fleet.shared.end_anchor(fleet.planes[0].homes.anchor("d0"))
    await fleet.live(0, engine, 40)

    assert fleet.states() == ALIVE
    assert await fleet.stored() is not None


async def test_a_registration_that_vanished_by_itself_is_put_back(fleet: Fleet) -> None:
    """Though its home and its anchor are there."""
    engine = await fleet.register(0)

    fleet.shared.remove("engines", "d0")
    await fleet.live(0, engine, 2)

    assert fleet.states() == ALIVE


async def test_a_home_that_was_put_back_takes_its_engine_along(fleet: Fleet) -> None:
    """The engine does not vanish with the anchor of before."""
    engine = await fleet.register(0)
    fleet.shared.remove("homes", "d0")

    await fleet.live(0, engine, 2)

    assert fleet.hangs_on_its_home("d0")


async def test_a_lost_engine_whose_anchor_was_lost_at_once(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets another one."""
    await fleet.register(0)
    anchors = fleet.stores[0].anchors
    opens, ended = anchors.open, asyncio.Event()

    async def open_one(ttl: float, *, keep: bool = True) -> str:
        name = await opens(ttl, keep=keep)
        if not ended.is_set():
            ended.set()
            fleet.shared.end_anchor(name)
        return name

    monkeypatch.setattr(anchors, "open", open_one)
    await fleet.advance(18)

    assert ended.is_set()
    assert fleet.states() == [EngineState.LOST] * 3


# -- First come -------------------------------------------------------------------------------


async def test_the_first_that_registers_a_named_engine_keeps_it(fleet: Fleet) -> None:
    """The others leave it alone, and no epoch is spent."""
    one, two = (plane.directory for plane in fleet.planes[:2])
    engine = (await one.register(stock_engine(), first_come=True)).engine
    await fleet.settle()

    assert two.attended("s0")
    assert not one.attended("s0")
    with pytest.raises(AlreadyExists):
        await two.register(stock_engine(), first_come=True)

    assert two.get("s0").epoch == engine.epoch


async def test_two_that_register_a_named_engine_at_the_same_time(fleet: Fleet) -> None:
    """One does; the other is told, or finds it registered."""
    answers = await asyncio.gather(
        *(plane.directory.register(stock_engine(), first_come=True) for plane in fleet.planes),
        return_exceptions=True,
    )
    await fleet.settle()

    assert sum(not isinstance(answer, BaseException) for answer in answers) == 1
    assert all(
        isinstance(answer, Conflict | AlreadyExists)
        for answer in answers
        if isinstance(answer, BaseException)
    )
    assert fleet.home("s0").count(True) == 1


async def test_a_named_engine_whose_registration_lapsed_is_free(fleet: Fleet) -> None:
    """Another replica may take it over then."""
    first = await fleet.register(0, stock_engine())
    await fleet.advance(16)
    assert not fleet.planes[1].directory.attended("s0")

    second = await fleet.planes[1].directory.register(stock_engine(), first_come=True)

    assert second.engine.epoch > first.epoch


# -- The log ----------------------------------------------------------------------------------


async def test_the_log_tells_what_becomes_of_an_engine(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """One line each, with name, epoch and replica."""
    caplog.set_level(logging.INFO, logger="kvplane_services.engine")
    engine = await fleet.register(0)
    await fleet.beat(1, engine)
    await fleet.settle()
    await fleet.advance(16)
    again = await fleet.register(2)
    await fleet.planes[2].directory.deregister("d0", again.epoch)

    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    for what, epoch, replica in (
        ("registered", engine.epoch, "replica-0"),
        ("moved home", engine.epoch, "replica-1"),
        ("moved away", engine.epoch, "replica-0"),
        ("is lost", engine.epoch, "replica-1"),
        ("deregistered", again.epoch, "replica-2"),
    ):
        assert [
            line
            for line in lines
            if what in line and "engines/d0" in line and str(epoch) in line and replica in line
        ], what
