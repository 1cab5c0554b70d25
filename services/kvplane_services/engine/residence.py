"""Which engines live at this replica, how others move in, and how they move out or end.

Where this replica is an engine's home it decides from memory. Before it becomes one it asks the
store itself what is registered: its own copy may be behind what the home before wrote last.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator

from kvplane_services.clock import Clock
from kvplane_services.engine.answers import refusal
from kvplane_services.engine.departures import Departures
from kvplane_services.engine.model import Engine, EngineState
from kvplane_services.engine.own_engines import OwnEngines
from kvplane_services.engine.ports import Homes
from kvplane_services.engine.registration import DirectoryConfig
from kvplane_services.engine.seen_engines import SeenEngines
from kvplane_services.errors import Conflict, Unavailable
from kvplane_services.store.model import Versioned
from kvplane_services.store.ports import Anchors, Table
from kvplane_services.store.write_behind import WriteBehind

_log = logging.getLogger(__name__)


class Residence:
    """Engines whose home is this replica, and those seen elsewhere. Implements `HomeListener`.

    For the arguments see `EngineDirectory`.
    """

    def __init__(
        self,
        *,
        table: Table[Engine],
        homes: Homes,
        anchors: Anchors,
        reachable: Callable[[], bool],
        clock: Clock,
        config: DirectoryConfig,
    ) -> None:
        self._table = table
        self._homes = homes
        self._anchors = anchors
        self._clock = clock
        self._config = config
        # Own engines of which the store may hold something else than is right.
        self._doubtful: set[str] = set()
        self._departures = Departures(
            homes=homes, stay=config.heartbeat_interval, remember=config.ttl
        )
        self.own = OwnEngines(
            homes=homes, table=table, clock=clock, config=config, on_refused=self._doubtful.add
        )
        self._seen = SeenEngines(
            table=table, clock=clock, remember=config.ttl, on_seen=self._on_seen
        )
        self._behind = WriteBehind(
            journal=self.own.journal, reachable=reachable, clock=clock, what="engines"
        )
        homes.listen(self)

    # -- What is known -----------------------------------------------------------------------

    def find(self, engine_id: str) -> Engine | None:
        """The engine, whoever its home is, or None."""
        return self.own.find(engine_id) or self._departures.standing(self._seen.find(engine_id))

    def all(self) -> Iterator[Engine]:
        """All engines, whoever their home is."""
        for engine_id in self.own.ids():
            engine = self.own.find(engine_id)
            if engine is not None:
                yield engine
        for engine in self._seen.all():
            if engine.engine_id not in self.own and self._departures.standing(engine):
                yield engine

    # -- Moving in ---------------------------------------------------------------------------

    async def engine_of(self, engine_id: str, epoch: int) -> Engine | None:
        """What is registered, for a call with that epoch. If the call counts, it lives here.

        Raises:
            Conflict: It moves somewhere else at the same time.
            Unavailable: The store has to be asked, and cannot be reached.

        """
        engine = self.own.find(engine_id)
        if engine is None:
            engine = await self._look_up(engine_id, epoch)
            if engine is not None and refusal(engine, epoch) is None:
                engine = await self.move_in(engine)
        elif epoch > engine.epoch:
            found = await self._table.get(engine_id, current=True)
            if found is not None and found.value.epoch == epoch:
                raise Unavailable(
                    f"{engine.name} registered at another replica just now: open the stream again",
                    retry_after=0.1,
                )
        return engine

    async def settle_in(self, engine_id: str, *, ttl: float, insist: bool) -> Engine | None:
        """Makes this replica the home of an engine that registers; returns what it was before.

        Raises:
            Conflict: It registers at another replica at the same time.
            Unavailable: The store cannot be reached.

        """
        lives_here = self._homes.is_home(engine_id)
        await self._homes.take(engine_id, ttl=ttl, renew=True, insist=insist)
        before = self.own.find(engine_id)
        if not lives_here or before is None:
            if engine_id not in self.own:
                # Left again by the sweep, unless the registration comes about.
                self._departures.doubt(engine_id, self._clock.now())
            found = await self._table.get(engine_id, current=True)
            self.own.journal.adopt(engine_id, found.revision if found else 0)
            before = self._departures.standing(found.value) if found else None
        if not self._homes.is_home(engine_id):
            raise Conflict(f"engines/{engine_id} moved on at once")
        self._doubtful.discard(engine_id)
        self._departures.cancel(engine_id)
        return before

    async def end_told(self, engine_id: str, epoch: int) -> None:
        """Ends a registration, and tells those who follow that it is no loss of the store's.

        What vanishes without having been lost is taken for such a loss, and kept for a while.

        Raises:
            Unavailable: The store cannot be reached.

        """
        engine = self.own.find(engine_id)
        if engine is not None and engine.state is not EngineState.LOST:
            self.own.lose(engine_id)
            self.own.hang_lost(engine_id, self._homes.anchor(engine_id))
            await self.flush()
            engine = self.own.find(engine_id)
        # It may have registered again meanwhile, or live elsewhere.
        if engine is not None and engine.epoch == epoch:
            self.end(engine_id)
            await self.flush()

    def end(self, engine_id: str) -> None:
        """Ends a registration; the replica leaves the engine once others had time to see it."""
        engine = self.own.find(engine_id)
        if engine is not None:
            self.own.end(engine_id)
            self._departures.note(engine_id, engine.epoch, self._clock.now())

    async def _look_up(self, engine_id: str, epoch: int) -> Engine | None:
        known = self._departures.standing(self._seen.find(engine_id))
        if known is not None and refusal(known, epoch) is None:
            return known
        found = await self._table.get(engine_id, current=True)
        known = self._departures.standing(found.value if found else self._seen.vanished(engine_id))
        if known is None or epoch <= known.epoch:
            return known
        # Epochs grow: nobody has taken its place, it is the store that has lost its registration.
        if found is None:
            raise Unavailable(
                f"{known.name} is about to be put back into the store: open the stream again",
                retry_after=0.5,
            )
        return None

    async def move_in(self, engine: Engine) -> Engine | None:
        """Makes this replica an engine's home; returns what the store has of it.

        Raises:
            Conflict: It moves somewhere else at the same time.
            Unavailable: The store cannot be reached.

        """
        engine_id = engine.engine_id
        await self._homes.take(engine_id, ttl=self._config.ttl)
        if engine_id not in self.own:
            self.own.enter(engine, ttl=self._homes.ttl(engine_id))
        self._departures.cancel(engine_id)
        self._doubtful.add(engine_id)
        await self._ask(engine_id)
        self._doubtful.discard(engine_id)
        _log.info(
            "%s, epoch %d, moved home to replica %s",
            engine.name,
            engine.epoch,
            self._homes.replica,
        )
        await self.write_soon()
        return self.own.find(engine_id)

    # -- Listening ---------------------------------------------------------------------------

    def home_taken(self, engine_id: str) -> None:
        """See `HomeListener.home_taken`."""
        known = self._departures.standing(
            self._seen.find(engine_id) or self._seen.vanished(engine_id)
        )
        if known is not None and engine_id not in self.own:
            self.own.enter(known, ttl=self._homes.ttl(engine_id))
            self._doubtful.add(engine_id)

    def home_lost(self, engine_id: str) -> None:
        """See `HomeListener.home_lost`."""
        self._doubtful.discard(engine_id)
        engine = self.own.find(engine_id)
        if engine is not None:
            _log.info(
                "%s, epoch %d, moved away from replica %s",
                engine.name,
                engine.epoch,
                self._homes.replica,
            )
        self.own.drop(engine_id)

    def home_restored(self, engine_id: str) -> None:
        """See `HomeListener.home_restored`."""
        if engine_id in self.own:
            self.own.rewrite(engine_id)
            self._doubtful.add(engine_id)

    def _on_seen(self, engine_id: str, found: Versioned[Engine] | None) -> None:
        if engine_id not in self.own:
            return
        doubtful = self.own.seen(found) if found else engine_id not in self.own.journal
        if doubtful:
            self._doubtful.add(engine_id)

    # -- Upkeep ------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Writes what is noted. Raises Unavailable; it stays noted, and is written later."""
        self._behind.wake()
        await self.own.journal.flush()

    async def write_soon(self) -> None:
        """Has what is noted written, and waits for a moment at most."""
        await self._behind.settle()

    async def sweep(self) -> None:
        """Calls silent engines lost, forgets those lost for long, and puts the store right.

        Raises:
            Unavailable: The store cannot be reached.

        """
        for engine_id in self.own.pop_due(self._clock.now()):
            engine = self.own.find(engine_id)
            if engine is None or engine.state is EngineState.LOST:
                self.end(engine_id)
                continue
            lost = self.own.lose(engine_id)
            self._doubtful.add(engine_id)
            _log.info(
                "%s, epoch %d, is lost to replica %s: no heartbeat for %g s",
                lost.name,
                lost.epoch,
                self._homes.replica,
                self.own.ttl(engine_id),
            )
        self.own.note_loads()
        await self._put_right()
        await self.flush()
        await self._departures.leave(self._clock.now())

    async def run(self) -> None:
        """Sweeps, and follows the store, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._seen.run())
            tasks.create_task(self._behind.run())
            tasks.create_task(self._sweep_forever())
            tasks.create_task(self._follow_anchors())

    async def _sweep_forever(self) -> None:
        while True:
            await self._clock.sleep(self._config.heartbeat_interval / 2)
            try:
                await self.sweep()
            except Unavailable as error:
                # Whoever writes behind says so as well, once.
                _log.debug("engines wait for the store: %s", error.message)

    async def _follow_anchors(self) -> None:
        async for anchor in self._anchors.lost():
            self._doubtful.update(self.own.hanging_on(anchor))

    async def _put_right(self) -> None:
        anchor = ""
        while self._doubtful:
            engine_id = self._doubtful.pop()
            try:
                await self._ask(engine_id)
                if self.own.is_lost(engine_id) and not anchor:
                    anchor = await self._anchors.open(self._config.remember_lost, keep=False)
                # It may have moved meanwhile: what woke up late is told of that just now.
                if self.own.is_lost(engine_id):
                    self.own.hang_lost(engine_id, anchor)
            except Unavailable:
                self._doubtful.add(engine_id)
                raise

    async def _ask(self, engine_id: str) -> None:
        found = await self._table.get(engine_id, current=True)
        if self._homes.is_home(engine_id) and engine_id in self.own:
            self.own.reconcile(engine_id, found)
