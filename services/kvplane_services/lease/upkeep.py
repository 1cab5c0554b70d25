"""Ends the leases that are over without anybody's word: their time is up, or their engine gone."""

import asyncio

from kvplane_services.clock import Clock
from kvplane_services.engine.model import Engine, EngineState
from kvplane_services.lease.config import LeaseConfig
from kvplane_services.lease.ledger import Ledger
from kvplane_services.lease.model import EndReason
from kvplane_services.lease.ports import Engines
from kvplane_services.lease.publication import Publication
from kvplane_services.lease.reconciler import Reconciler
from kvplane_services.store.ports import Event, Removed, Reset, Synced, Upserted


class Upkeep:
    """Watches deadlines and engines.

    Args:
        ledger: The leases.
        reconciler: Told of engines that restarted or are gone.
        publication: Where ends are published.
        engines: Which engines are registered, and with which epoch.
        clock: Time.
        config: Durations and bounds.

    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        reconciler: Reconciler,
        publication: Publication,
        engines: Engines,
        clock: Clock,
        config: LeaseConfig,
    ) -> None:
        self._ledger = ledger
        self._reconciler = reconciler
        self._publication = publication
        self._engines = engines
        self._clock = clock
        self._config = config

    async def run(self) -> None:
        """Sweeps, and follows the engines, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sweep_forever())
            tasks.create_task(self._follow_engines())

    def sweep(self) -> None:
        """Ends leases past their deadline and forgets old ones."""
        self._ledger.sweep(self._clock.now())

    def observe(self, engine: Engine) -> None:
        """Ends leases that an engine's registration shows to be over."""
        now = self._clock.now()
        if engine.state is EngineState.LOST:
            for record in self._ledger.on_engine(engine.engine_id):
                if record.lease.engine_epoch <= engine.epoch:
                    self._ledger.end(record, EndReason.ENGINE_LOST, now)
        else:
            self._reconciler.fence_older(engine)

    def observe_gone(self, engine_id: str) -> None:
        """Ends the leases of an engine that is not registered any more."""
        if self._engines.find(engine_id) is None:
            for record in self._ledger.on_engine(engine_id):
                self._ledger.end(record, EndReason.ENGINE_LOST, self._clock.now())
            self._reconciler.forget(engine_id)

    async def _sweep_forever(self) -> None:
        while True:
            await self._clock.sleep(self._config.sweep_interval)
            self.sweep()
            await self._publication.publish_or_wait()

    async def _follow_engines(self) -> None:
        async for event in self._engines.feed()():
            self._observe_event(event)
            await self._publication.publish_or_wait()

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
