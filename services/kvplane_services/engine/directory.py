"""The directory of engines: which are registered, and which of them are alive.

An engine is alive while its heartbeats come within its TTL; the state of a stream says nothing.
The epoch is the fence: every registration gets a larger one, and only a call that carries
exactly the current one counts. Whoever registers an engine keeps it alive, be it the connector
in the engine or the plane's own prober for an engine that runs the stock connector.

Any replica serves any engine. The one that an engine's heartbeats come to is its home: it alone
counts its deadline and writes about it, and while it can reach the store or not it answers
heartbeats at once, from memory. Of the others' engines a replica knows what their homes wrote.

Not promised: that an engine which missed its deadline is dead. It may serve on; it has to
register again before it counts. Nor that one whose home died is ever called lost: it moves, or
it vanishes.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

from kvplane_services.clock import Clock
from kvplane_services.engine.answers import (
    HeartbeatAnswer,
    HeartbeatOutcome,
    Registration,
    refusal,
)
from kvplane_services.engine.compatibility import check_build, check_partners
from kvplane_services.engine.drain_order import order_elsewhere, unknown
from kvplane_services.engine.model import Engine, EngineLoad, EngineState, Role
from kvplane_services.engine.ports import Homes
from kvplane_services.engine.registration import (
    DirectoryConfig,
    as_registered,
    check_registration,
    larger_epoch,
)
from kvplane_services.engine.residence import Residence
from kvplane_services.errors import AlreadyExists, EpochStale, Saturated
from kvplane_services.store.feeds import TableFeed
from kvplane_services.store.model import Event
from kvplane_services.store.paging import Page, PageRequest
from kvplane_services.store.ports import Anchors, Feed, Sequence, Table
from kvplane_services.store.requests import RequestMemory

_log = logging.getLogger(__name__)


class EngineDirectory:
    """Registers engines and sweeps out those that fall silent.

    Args:
        table: Where registrations are published.
        epochs: Numbers that only grow, also over restarts of the plane.
        homes: Which replica looks after which engine.
        anchors: What lost engines hang on.
        reachable: Whether the store answered lately.
        clock: Time.
        config: Durations and bounds.
        plane_version: Version of the kvplane package, which connectors must match in its minor.

    """

    def __init__(
        self,
        *,
        table: Table[Engine],
        epochs: Sequence,
        homes: Homes,
        anchors: Anchors,
        reachable: Callable[[], bool],
        clock: Clock,
        plane_version: str,
        config: DirectoryConfig | None = None,
    ) -> None:
        self._table = table
        self._epochs = epochs
        self._homes = homes
        self._clock = clock
        self._config = config or DirectoryConfig()
        self._plane_version = plane_version
        self._residence = Residence(
            table=table,
            homes=homes,
            anchors=anchors,
            reachable=reachable,
            clock=clock,
            config=self._config,
        )
        self._own = self._residence.own
        self._requests: RequestMemory[Registration] = RequestMemory()
        # One registration at a time: a retry must find the answer of the call that it repeats.
        self._registering = asyncio.Lock()

    async def register(
        self, engine: Engine, *, ttl: float = 0.0, request_id: str = "", first_come: bool = False
    ) -> Registration:
        """Registers an engine, or takes its registration over; its home is here from then on.

        Args:
            engine: As the engine describes itself; output-only fields are ignored.
            ttl: Wanted TTL in seconds, not negative; clamped. 0 for the default.
            request_id: Makes a retry at this replica return the first answer.
            first_come: Leave it to another replica that keeps it registered, or was quicker.

        Raises:
            InvalidRequest: Something is missing or malformed.
            EngineIncompatible: It cannot work with this plane or with its partners.
            Saturated: Too many engines are registered.
            AlreadyExists: Another replica keeps it registered; with `first_come` only.
            Conflict: Another replica registers it at the same time.
            Unavailable: The store cannot be reached.

        """
        engine = check_registration(engine)
        async with self._registering:
            asked = (engine, ttl)
            first = self._requests.find(request_id, asked, self._clock.now())
            if first is not None:
                return first
            check_build(engine, plane_version=self._plane_version)
            check_partners(engine, self._residence.all())
            self._check_room(engine)
            before = self.find(engine.engine_id)
            if first_come:
                await self._check_free(engine)
            granted = self._config.clamp(ttl)
            epoch = await self._epochs.next()
            held = await self._residence.settle_in(
                engine.engine_id, ttl=granted, insist=not first_come
            )
            if first_come and held is not None and _newer(held, before):
                # Somebody was quicker, and its registration stands: it lives here now.
                self._own.enter(held, ttl=granted)
                return Registration(held, granted, self._config.heartbeat_interval)
            epoch = larger_epoch(epoch, before, held)
            engine = as_registered(engine, held, epoch=epoch, at=self._clock.wall())
            self._own.register(engine, ttl=granted)
            answer = Registration(
                self.get(engine.engine_id), granted, self._config.heartbeat_interval
            )
            self._requests.remember(request_id, asked, answer, self._clock.now())
            _log.info(
                "%s registered with epoch %d at replica %s",
                engine.name,
                epoch,
                self._homes.replica,
            )
        await self._residence.flush()
        return answer

    async def heartbeat(
        self, engine_id: str, epoch: int, load: EngineLoad | None = None
    ) -> HeartbeatAnswer:
        """Extends a registration; `load` of None means unchanged.

        Answered at once where this replica is the engine's home. Where another was, it moves.

        Raises:
            Conflict: It moves somewhere else at the same time.
            Unavailable: It cannot move, since the store cannot be reached.

        """
        interval = self._config.heartbeat_interval
        engine = await self._residence.engine_of(engine_id, epoch)
        refused = refusal(engine, epoch)
        if refused is not None or engine_id not in self._own:
            return HeartbeatAnswer(refused or HeartbeatOutcome.NOT_FOUND, interval)
        self._own.extend(engine_id)
        ttl = self._own.ttl(engine_id)
        if load is not None and self._own.load(engine_id, load):
            await self._residence.write_soon()
        engine = self.get(engine_id)
        return HeartbeatAnswer(
            HeartbeatOutcome.RENEWED,
            interval,
            engine=engine,
            ttl=ttl,
            drain_requested=engine.state is EngineState.DRAINING,
        )

    async def drain(self, engine_id: str) -> Engine:
        """Gives the engine no new turns. Raises NotFound, Conflict, Unavailable."""
        return await self._order(engine_id, drain=True)

    async def resume(self, engine_id: str) -> Engine:
        """Gives a draining engine new turns again. Raises NotFound, Conflict, Unavailable."""
        return await self._order(engine_id, drain=False)

    async def deregister(self, engine_id: str, epoch: int) -> None:
        """Ends a registration. Does nothing if there is none.

        Raises:
            EpochStale: Another registration took its place.
            Conflict: It moves somewhere else at the same time.
            Unavailable: The store cannot be reached.

        """
        engine = await self._residence.engine_of(engine_id, epoch)
        if engine is not None and engine.epoch == epoch and engine_id not in self._own:
            engine = await self._residence.move_in(engine)
        if engine is None:
            return
        if engine.epoch != epoch:
            raise EpochStale(
                f"{engine.name} is registered with epoch {engine.epoch}, not {epoch}: another "
                "process took its place",
                engine=engine.name,
                epoch=str(engine.epoch),
            )
        await self._residence.end_told(engine_id, epoch)
        _log.info(
            "%s, epoch %d, deregistered at replica %s", engine.name, epoch, self._homes.replica
        )

    def attended(self, engine_id: str) -> bool:
        """Whether another replica keeps the engine registered, as far as this one knows."""
        return engine_id not in self._own and _is_alive(self.find(engine_id))

    @property
    def unwritten(self) -> int:
        """Changes of engines that the store has not taken yet."""
        return len(self._own.journal)

    def find(self, engine_id: str) -> Engine | None:
        """The engine, or None."""
        return self._residence.find(engine_id)

    def get(self, engine_id: str) -> Engine:
        """The engine. Raises NotFound."""
        engine = self.find(engine_id)
        if engine is None:
            raise unknown(engine_id)
        return engine

    def home_of(self, engine_id: str) -> str:
        """See `Homes.home_of`."""
        return self._homes.home_of(engine_id)

    async def list(
        self, page: PageRequest, *, role: Role | None = None, model: str = ""
    ) -> Page[Engine]:
        """Engines by name. Raises InvalidRequest, Unavailable."""
        revision = await self._table.revision()
        engines = (
            engine
            for engine in self._residence.all()
            if (role is None or engine.role is role) and (not model or model in engine.models)
        )
        return page.take(
            engines,
            key=lambda engine: engine.engine_id,
            filters=("engines", role.value if role else "", model),
            revision=revision,
        )

    def feed(self) -> Feed[Engine]:
        """All engines by id, then every change; of loads alone, the latest after a while."""
        return TableFeed(table=self._table, clock=self._clock)

    def watch(self, *, after: int = 0) -> AsyncIterator[Event[Engine]]:
        """See `Table.watch`."""
        return self._table.watch(after=after)

    async def sweep(self) -> None:
        """See `Residence.sweep`. Raises Unavailable."""
        await self._residence.sweep()

    async def run(self) -> None:
        """See `Residence.run`."""
        await self._residence.run()

    async def _order(self, engine_id: str, *, drain: bool) -> Engine:
        engine = self.find(engine_id)
        if engine is None or engine.state is EngineState.LOST:
            raise unknown(engine_id)
        if engine_id not in self._own:
            return await order_elsewhere(
                engine_id, drain=drain, table=self._table, homes=self._homes
            )
        state = EngineState.DRAINING if drain else EngineState.ACTIVE
        self._own.decide(engine_id, state, drain=drain)
        await self._residence.flush()
        return self.get(engine_id)

    async def _check_free(self, engine: Engine) -> None:
        # The table's copy may know of one that this replica has not taken note of yet.
        found = await self._table.get(engine.engine_id)
        if engine.engine_id not in self._own and _is_alive(found.value if found else None):
            raise AlreadyExists(f"{engine.name} is another replica's to keep registered")

    def _check_room(self, engine: Engine) -> None:
        limit = self._config.max_engines
        if self.find(engine.engine_id) is None and sum(1 for _ in self._residence.all()) >= limit:
            raise Saturated(
                f"{limit} engines are registered: deregister some", retry_after=self._config.ttl
            )


def _is_alive(engine: Engine | None) -> bool:
    return engine is not None and engine.state is not EngineState.LOST


def _newer(held: Engine, before: Engine | None) -> bool:
    """Whether an engine was registered after this replica had looked."""
    return _is_alive(held) and held.epoch > (before.epoch if before else 0)
