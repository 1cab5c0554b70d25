"""What is done without anybody's word: leases end in time, engines go, and late grants are made."""

import asyncio

from kvplane_services.clock import Clock, jittered
from kvplane_services.engine.model import Engine, EngineState
from kvplane_services.lease.awaited import ReportingEngines
from kvplane_services.lease.config import LeaseConfig
from kvplane_services.lease.following import Following
from kvplane_services.lease.ledger import Ledger
from kvplane_services.lease.model import EndReason
from kvplane_services.lease.ports import Engines
from kvplane_services.lease.publication import Publication
from kvplane_services.lease.reconciler import Reconciler
from kvplane_services.store.model import Event, Removed, Reset, Synced, Upserted
from kvplane_services.store.ports import Store

# Between attempts to get tokens for retentions that wait, in seconds.
_RETRY_GRANTS = 0.5


class Upkeep:
    """Watches deadlines, engines, and whatever waits for the store.

    Args:
        ledger: Leases of own engines.
        reconciler: Told of engines that restarted or are gone, and grants leases.
        reporting: Which retentions wait for leases.
        following: What others write.
        publication: Where changes are published.
        engines: Which engines are registered, and with which epoch.
        store: Whether it can be reached.
        clock: Time.
        config: Durations and bounds.

    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        reconciler: Reconciler,
        reporting: ReportingEngines,
        following: Following,
        publication: Publication,
        engines: Engines,
        store: Store,
        clock: Clock,
        config: LeaseConfig,
    ) -> None:
        self._ledger = ledger
        self._reconciler = reconciler
        self._reporting = reporting
        self._following = following
        self._publication = publication
        self._engines = engines
        self._store = store
        self._clock = clock
        self._config = config

    async def run(self) -> None:
        """Does all of it, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sweep_forever())
            tasks.create_task(self._follow_engines())
            tasks.create_task(self._grant_late())
            tasks.create_task(self._following.follow_leases())
            tasks.create_task(self._following.follow_claims())
            tasks.create_task(self._following.look_again())

    def sweep(self) -> None:
        """Ends leases past their deadline and forgets old ones."""
        now = self._clock.now()
        self._ledger.sweep(now)
        self._following.sweep(now)

    def observe(self, engine: Engine) -> None:
        """Ends leases that an own engine's registration shows to be over."""
        now = self._clock.now()
        if engine.state is EngineState.LOST:
            for record in self._ledger.on_engine(engine.engine_id):
                if record.lease.engine_epoch <= engine.epoch:
                    self._ledger.end(record, EndReason.ENGINE_LOST, now)
        else:
            self._reconciler.fence_older(engine)

    def observe_gone(self, engine_id: str) -> None:
        """Ends the leases of an own engine that is not registered any more."""
        if self._engines.find(engine_id) is None:
            for record in self._ledger.on_engine(engine_id):
                self._ledger.end(record, EndReason.ENGINE_LOST, self._clock.now())
            self._reconciler.forget(engine_id)

    async def _sweep_forever(self) -> None:
        while True:
            await self._clock.sleep(self._config.sweep_interval)
            self.sweep()
            self._publication.wake()

    async def _follow_engines(self) -> None:
        async for event in self._engines.feed()():
            self._observe_event(event)
            self._publication.wake()

    def _observe_event(self, event: Event[Engine]) -> None:
        match event:
            case Upserted(value=engine):
                self.observe(engine)
            case Removed(key=engine_id):
                self.observe_gone(engine_id)
            case Synced():
                for engine_id in self._ledger.engines():
                    self.observe_gone(engine_id)
            case Reset():
                pass

    async def _grant_late(self) -> None:
        """Gives retentions their leases whose engines reported them while no token could be had."""
        while True:
            await self._reporting.some_wait.wait()
            self._reporting.some_wait.clear()
            await self._clock.sleep(jittered(_RETRY_GRANTS))
            if not self._store.reachable:
                self._reporting.some_wait.set()
                continue
            for engine_id in self._reporting.waiting():
                await self._grant_awaited(engine_id)
            self._publication.wake()

    async def _grant_awaited(self, engine_id: str) -> None:
        known = self._reporting.of(engine_id)
        async with known.lock:
            engine = self._engines.find(engine_id)
            if engine is None or not self._reconciler.is_current(engine):
                known.awaiting.clear()
            else:
                await self._reconciler.grant_awaited(engine, known)
