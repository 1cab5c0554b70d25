"""Brings the ledger in line with what an engine reports, and the engine with the ledger."""

import logging
from dataclasses import replace

from kvplane_services.clock import Clock
from kvplane_services.engine.model import Engine
from kvplane_services.engine.ports import Homes
from kvplane_services.errors import InvalidRequest
from kvplane_services.lease.awaited import Awaited, Reporting, ReportingEngines
from kvplane_services.lease.config import LeaseConfig
from kvplane_services.lease.directives import Directives
from kvplane_services.lease.granting import Granting
from kvplane_services.lease.grants import check_report
from kvplane_services.lease.ledger import Ledger
from kvplane_services.lease.model import EndReason
from kvplane_services.lease.ports import Engines
from kvplane_services.lease.record import Record
from kvplane_services.lease.reports import Directive, EngineReport, ReportAnswer, RetentionReport
from kvplane_services.lease.valuation import Valuation

_log = logging.getLogger(__name__)


class Reconciler:
    """Takes the reports of engines in, one at a time of each, and says what they are to do.

    Args:
        ledger: The leases.
        reporting: The engines that report.
        granting: Grants leases.
        directives: What engines are told.
        valuation: Told of reads.
        engines: Which engines are registered, and with which epoch.
        homes: Which of them are this replica's.
        clock: Time.
        config: Durations and bounds.

    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        reporting: ReportingEngines,
        granting: Granting,
        directives: Directives,
        valuation: Valuation,
        engines: Engines,
        homes: Homes,
        clock: Clock,
        config: LeaseConfig,
    ) -> None:
        self._ledger = ledger
        self._reporting = reporting
        self._granting = granting
        self._directives = directives
        self._valuation = valuation
        self._engines = engines
        self._homes = homes
        self._clock = clock
        self._config = config

    def is_current(self, engine: Engine) -> bool:
        """Whether an engine is this replica's, and registered with this epoch."""
        current = self._engines.find(engine.engine_id)
        return (
            current is not None
            and current.epoch == engine.epoch
            and self._homes.is_home(engine.engine_id)
        )

    async def take(self, engine: Engine, report: EngineReport) -> ReportAnswer:
        """Takes a report in, under the engine's lock."""
        known = self._reporting.of(engine.engine_id)
        self.fence_older(engine)
        known.forget_ended(report)
        refused: list[Directive] = []
        for index, retention in enumerate(report.retentions):
            try:
                check_report(retention, field=f"retentions[{index}]")
            except InvalidRequest as error:
                _log.warning("%s: no lease on a retention: %s", engine.name, error.message)
                refused.append(_refusal(retention))
                continue
            known.awaiting[retention.retention_id] = Awaited(retention, self._clock.now())
        if known.awaiting:
            await self.grant_awaited(engine, known)
            if not self._is_same(engine, known):
                return ReportAnswer()
        now = self._clock.now()
        self._count_reads(engine, report, now)
        self._end_reported(engine, report, now)
        if report.full:
            self._end_absent(engine, report, now)
            known.complete = engine.epoch
        return ReportAnswer(
            directives=(*refused, *self._directives.of(engine, now, everything=report.full)),
            full_report_needed=known.complete != engine.epoch,
        )

    async def grant_awaited(self, engine: Engine, known: Reporting) -> None:
        """Gives what waits its leases, under the engine's lock; what cannot have one waits on."""
        self._refresh_granted(engine, known)
        if not known.awaiting:
            return
        drawn = await self._granting.draw(len(known.awaiting))
        if drawn is None:
            self._reporting.some_wait.set()
            return
        if not self._is_same(engine, known):
            return
        # One may have been taken up from the table meanwhile.
        self._refresh_granted(engine, known)
        self._granting.grant(engine, known.awaiting.values(), drawn)
        known.awaiting.clear()

    def fence_older(self, engine: Engine) -> None:
        """Ends the leases on what the engine held under earlier registrations."""
        if not self._homes.is_home(engine.engine_id):
            return
        known = self._reporting.of(engine.engine_id)
        if engine.epoch <= known.fenced:
            return
        known.fenced = engine.epoch
        known.awaiting.clear()
        for record in self._ledger.on_engine(engine.engine_id):
            if record.lease.engine_epoch < engine.epoch:
                self._ledger.end(record, EndReason.FENCED, self._clock.now())

    def forget(self, engine_id: str) -> None:
        """Forgets an engine that is gone, or is another replica's."""
        self._reporting.forget(engine_id)
        self._directives.forget(engine_id)

    def _is_same(self, engine: Engine, known: Reporting) -> bool:
        # Its home may have moved away and back meanwhile.
        return self.is_current(engine) and self._reporting.of(engine.engine_id) is known

    def _refresh_granted(self, engine: Engine, known: Reporting) -> None:
        for retention_id, awaited in list(known.awaiting.items()):
            record = self._ledger.retention(engine.engine_id, retention_id)
            if record is not None:
                del known.awaiting[retention_id]
                self._refresh(record, awaited)

    def _refresh(self, record: Record, awaited: Awaited) -> None:
        retention, lease = awaited.retention, record.lease
        if retention.reads > record.reads:
            record.used_at = self._clock.now()
            record.reads = retention.reads
        if (retention.lease, retention.fencing_token) != (lease.name, lease.fencing_token):
            shelf = self._ledger.shelf(lease.engine_id)
            if shelf is not None:
                shelf.tell(record)
        elif record.release is None:
            record.told = True
        remaining = min(retention.remaining, self._config.max_fixed_ttl)
        self._ledger.hold_until(record, awaited.reported_at + remaining)
        content = (retention.tokens, retention.blocks, retention.handle)
        if content != (lease.tokens, lease.blocks, lease.handle):
            self._ledger.update(
                record,
                replace(
                    lease,
                    tokens=retention.tokens,
                    blocks=retention.blocks,
                    handle=retention.handle,
                ),
            )

    def _count_reads(self, engine: Engine, report: EngineReport, now: float) -> None:
        for retention_id, reads in report.reads:
            record = self._ledger.retention(engine.engine_id, retention_id)
            if record is not None and reads > record.reads:
                self._valuation.used(record, now)
                record.used_at = now
                record.reads = reads

    def _end_reported(self, engine: Engine, report: EngineReport, now: float) -> None:
        for retention_id, reason in report.ended:
            self._reporting.of(engine.engine_id).awaiting.pop(retention_id, None)
            record = self._ledger.retention(engine.engine_id, retention_id)
            if record is not None:
                self._ledger.end(record, reason, now)

    def _end_absent(self, engine: Engine, report: EngineReport, now: float) -> None:
        held = {retention.retention_id for retention in report.retentions}
        for record in self._ledger.on_engine(engine.engine_id):
            if record.lease.retention_id not in held:
                # Nothing but pressure makes an engine free blocks before their time.
                early = now < self._ledger.deadline(record) - self._config.grace
                reason = EndReason.RECLAIMED if early else EndReason.EXPIRED
                self._ledger.end(record, reason, now)


def _refusal(retention: RetentionReport) -> Directive:
    return Directive(
        retention_id=retention.retention_id,
        lease=retention.lease,
        fencing_token=retention.fencing_token,
        release=EndReason.RELEASED,
    )
