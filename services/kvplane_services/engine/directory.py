"""The directory of engines: which are registered, and which of them are alive.

An engine is alive while its heartbeats come within its TTL; the state of a stream says nothing.
The epoch is the fence: every registration gets a larger one, and only a call that carries
exactly the current one counts. Whoever registers an engine keeps it alive, be it the connector
in the engine or the plane's own prober for an engine that runs the stock connector.

Not promised: that an engine which missed its deadline is dead. It may serve on; it has to
register again before it counts.
"""

import asyncio
import datetime as dt
import enum
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from kvplane_services.clock import Clock
from kvplane_services.deadlines import Deadlines
from kvplane_services.engine.compatibility import check_build, check_partners
from kvplane_services.engine.model import Engine, EngineLoad, EngineState, Role
from kvplane_services.engine.registration import DirectoryConfig, check_registration
from kvplane_services.errors import EpochStale, NotFound, Saturated, Unavailable
from kvplane_services.store.feeds import TableFeed
from kvplane_services.store.journal import Journal
from kvplane_services.store.paging import Page, PageRequest
from kvplane_services.store.ports import Event, Feed, Sequence, Table
from kvplane_services.store.requests import RequestMemory

_log = logging.getLogger(__name__)


class HeartbeatOutcome(enum.Enum):
    """What a heartbeat did to a registration."""

    RENEWED = "renewed"
    FENCED = "fenced"
    NOT_FOUND = "not_found"


@dataclass(frozen=True, slots=True)
class Registration:
    """An engine as registered, and for how long, in seconds."""

    engine: Engine
    ttl: float
    heartbeat_interval: float


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """What a heartbeat did; durations in seconds, `ttl` and `engine` only if it was RENEWED."""

    outcome: HeartbeatOutcome
    heartbeat_interval: float
    engine: Engine | None = None
    ttl: float = 0.0
    drain_requested: bool = False


class EngineDirectory:
    """Registers engines and sweeps out those that fall silent.

    Args:
        table: Where registrations are published.
        epochs: Numbers that only grow, also over restarts of the plane.
        clock: Time.
        config: Durations and bounds.
        plane_version: Version of the kvplane package, which connectors must match in its minor.

    """

    def __init__(
        self,
        *,
        table: Table[Engine],
        epochs: Sequence,
        clock: Clock,
        plane_version: str,
        config: DirectoryConfig | None = None,
    ) -> None:
        self._table = table
        self._epochs = epochs
        self._clock = clock
        self._config = config or DirectoryConfig()
        self._plane_version = plane_version
        self._journal = Journal(table=table)
        self._engines: dict[str, Engine] = {}
        self._ttls: dict[str, float] = {}
        # Engines that an operator drains; a lost one that comes back drains on.
        self._draining: set[str] = set()
        # When a live engine is lost, and when a lost one is forgotten.
        self._deadlines = Deadlines()
        self._requests: RequestMemory[Registration] = RequestMemory()
        # One registration at a time: a retry must find the answer of the call that it repeats.
        self._registering = asyncio.Lock()

    async def register(
        self, engine: Engine, *, ttl: float = 0.0, request_id: str = ""
    ) -> Registration:
        """Registers an engine, or takes its registration over.

        Args:
            engine: As the engine describes itself; output-only fields are ignored.
            ttl: Wanted TTL in seconds, not negative; clamped. 0 for the default.
            request_id: Makes a retry return the first answer.

        Raises:
            InvalidRequest: Something is missing or malformed.
            EngineIncompatible: It cannot work with this plane or with its partners.
            Saturated: Too many engines are registered.
            Unavailable: The store cannot be reached.

        """
        engine = check_registration(engine)
        async with self._registering:
            asked = (engine, ttl)
            first = self._requests.find(request_id, asked, self._clock.now())
            if first is not None:
                return first
            check_build(engine, plane_version=self._plane_version)
            check_partners(engine, self._engines.values())
            held = self._engines.get(engine.engine_id)
            if held is None and len(self._engines) >= self._config.max_engines:
                raise Saturated(
                    f"{self._config.max_engines} engines are registered: deregister some",
                    retry_after=self._config.ttl,
                )
            granted = self._config.clamp(ttl)
            epoch = await self._epochs.next()
            engine = replace(
                engine,
                epoch=epoch,
                state=self._first_state(engine, held),
                load=EngineLoad(),
                create_time=self._clock.wall(),
                expire_time=None,
            )
            self._ttls[engine.engine_id] = granted
            self._extend(engine.engine_id)
            self._write(engine)
            answer = Registration(self._stamped(engine), granted, self._config.heartbeat_interval)
            self._requests.remember(request_id, asked, answer, self._clock.now())
        await self._journal.flush()
        return answer

    async def heartbeat(
        self, engine_id: str, epoch: int, load: EngineLoad | None = None
    ) -> HeartbeatAnswer:
        """Extends a registration; `load` of None means unchanged. Raises Unavailable."""
        interval = self._config.heartbeat_interval
        engine = self._engines.get(engine_id)
        if engine is None or (engine.state is EngineState.LOST and engine.epoch == epoch):
            return HeartbeatAnswer(HeartbeatOutcome.NOT_FOUND, interval)
        if engine.epoch != epoch:
            return HeartbeatAnswer(HeartbeatOutcome.FENCED, interval)
        self._extend(engine_id)
        if load is not None and load != engine.load:
            engine = replace(engine, load=load)
            self._write(engine)
            await self._journal.flush()
        return HeartbeatAnswer(
            HeartbeatOutcome.RENEWED,
            interval,
            engine=engine,
            ttl=self._ttls[engine_id],
            drain_requested=engine.state is EngineState.DRAINING,
        )

    async def drain(self, engine_id: str) -> Engine:
        """Gives the engine no new turns. Raises NotFound, Unavailable."""
        return await self._set_state(engine_id, EngineState.DRAINING)

    async def resume(self, engine_id: str) -> Engine:
        """Gives a draining engine new turns again. Raises NotFound, Unavailable."""
        return await self._set_state(engine_id, EngineState.ACTIVE)

    async def deregister(self, engine_id: str, epoch: int) -> None:
        """Ends a registration. Does nothing if there is none.

        Raises:
            EpochStale: Another registration took its place.
            Unavailable: The store cannot be reached.

        """
        engine = self._engines.get(engine_id)
        if engine is None:
            return
        if engine.epoch != epoch:
            raise EpochStale(
                f"{engine.name} is registered with epoch {engine.epoch}, not {epoch}: another "
                "process took its place",
                engine=engine.name,
                epoch=str(engine.epoch),
            )
        self._forget(engine_id)
        await self._journal.flush()

    def find(self, engine_id: str) -> Engine | None:
        """The engine, or None."""
        engine = self._engines.get(engine_id)
        return self._stamped(engine) if engine else None

    def get(self, engine_id: str) -> Engine:
        """The engine. Raises NotFound."""
        engine = self.find(engine_id)
        if engine is None:
            raise _unknown(engine_id)
        return engine

    async def list(
        self, page: PageRequest, *, role: Role | None = None, model: str = ""
    ) -> Page[Engine]:
        """Engines by name. Raises InvalidRequest, Unavailable."""
        revision = await self._table.revision()
        engines = (
            self._stamped(engine)
            for engine in self._engines.values()
            if (role is None or engine.role is role) and (not model or model in engine.models)
        )
        return page.take(
            engines,
            key=lambda engine: engine.engine_id,
            filters=("engines", role.value if role else "", model),
            revision=revision,
        )

    def feed(self) -> Feed[Engine]:
        """All engines by id, then every change, loads included."""
        return TableFeed(table=self._table, clock=self._clock)

    def watch(self, *, after: int = 0) -> AsyncIterator[Event[Engine]]:
        """See `Table.watch`."""
        return self._table.watch(after=after)

    async def sweep(self) -> None:
        """Marks engines lost that missed their deadline, and forgets those lost for long.

        Raises:
            Unavailable: The store cannot be reached.

        """
        for engine_id in self._deadlines.pop_due(self._clock.now()):
            engine = self._engines[engine_id]
            if engine.state is EngineState.LOST:
                self._forget(engine_id)
                continue
            self._write(replace(engine, state=EngineState.LOST))
            self._deadlines.set(engine_id, self._clock.now() + self._config.remember_lost)
        await self._journal.flush()

    async def run(self) -> None:
        """Sweeps until cancelled."""
        while True:
            await self._clock.sleep(self._config.heartbeat_interval / 2)
            try:
                await self.sweep()
            except Unavailable as error:
                _log.warning("changes of engines wait for the store: %s", error.message)

    async def _set_state(self, engine_id: str, state: EngineState) -> Engine:
        engine = self._engines.get(engine_id)
        if engine is None or engine.state is EngineState.LOST:
            raise _unknown(engine_id)
        if state is EngineState.DRAINING:
            self._draining.add(engine_id)
        else:
            self._draining.discard(engine_id)
        if engine.state is not state:
            self._write(replace(engine, state=state))
            await self._journal.flush()
        return self.get(engine_id)

    def _extend(self, engine_id: str) -> None:
        self._deadlines.set(engine_id, self._clock.now() + self._ttls[engine_id])

    def _write(self, engine: Engine) -> None:
        self._engines[engine.engine_id] = engine
        self._journal.put(engine.engine_id, self._stamped(engine))

    def _forget(self, engine_id: str) -> None:
        del self._engines[engine_id]
        self._ttls.pop(engine_id, None)
        self._draining.discard(engine_id)
        self._deadlines.drop(engine_id)
        self._journal.delete(engine_id)

    def _first_state(self, engine: Engine, held: Engine | None) -> EngineState:
        # A process that registers again drains on; one that was restarted does not.
        same = held is not None and engine.nixl is not None and engine.nixl == held.nixl
        if same and engine.engine_id in self._draining:
            return EngineState.DRAINING
        self._draining.discard(engine.engine_id)
        return EngineState.ACTIVE

    def _stamped(self, engine: Engine) -> Engine:
        deadline = self._deadlines.get(engine.engine_id)
        if deadline is None or engine.state is EngineState.LOST:
            return replace(engine, expire_time=None)
        left = dt.timedelta(seconds=deadline - self._clock.now())
        return replace(engine, expire_time=self._clock.wall() + left)


def _unknown(engine_id: str) -> NotFound:
    return NotFound(
        f"there is no engine engines/{engine_id}: it must register first",
        engine=f"engines/{engine_id}",
    )
