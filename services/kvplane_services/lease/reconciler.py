"""Brings the ledger in line with what an engine reports, and the engine with the ledger."""

import logging
from dataclasses import replace

from kvplane_services.clock import Clock
from kvplane_services.engine.model import Engine
from kvplane_services.errors import InvalidRequest
from kvplane_services.lease.config import LeaseConfig
from kvplane_services.lease.directives import Directives
from kvplane_services.lease.grants import check_report, lease_id_for, lease_id_of
from kvplane_services.lease.ledger import Ledger, Record
from kvplane_services.lease.model import EndReason, Lease
from kvplane_services.lease.reports import Directive, EngineReport, ReportAnswer, RetentionReport
from kvplane_services.lease.tokens import TokenIssuer

_log = logging.getLogger(__name__)


class Reconciler:
    """Takes reports in, one at a time, and says what the engine is to do."""

    def __init__(
        self, *, ledger: Ledger, issuer: TokenIssuer, clock: Clock, config: LeaseConfig
    ) -> None:
        self._ledger = ledger
        self._issuer = issuer
        self._clock = clock
        self._config = config
        self._directives = Directives(ledger=ledger, config=config)
        # Epoch of the last full report, by engine. Without one the plane may know of some
        # retentions only.
        self._complete: dict[str, int] = {}

    async def take(self, engine: Engine, report: EngineReport) -> ReportAnswer:
        """Takes a report in. Raises Unavailable, after which a full report sets things right."""
        self.fence_older(engine)
        refused: list[Directive] = []
        for index, retention in enumerate(report.retentions):
            try:
                check_report(retention, field=f"retentions[{index}]")
            except InvalidRequest as error:
                _log.warning("%s: no lease on a retention: %s", engine.name, error.message)
                refused.append(_refusal(retention))
                continue
            record = self._ledger.retention(engine.engine_id, retention.retention_id)
            if record is None:
                await self._grant(engine, retention)
            else:
                self._refresh(record, retention)
        now = self._clock.now()
        self._count_reads(engine, report, now)
        self._end_reported(engine, report, now)
        if report.full:
            self._end_absent(engine, report, now)
            self._complete[engine.engine_id] = engine.epoch
        return ReportAnswer(
            directives=(*refused, *self._directives.of(engine, now, everything=report.full)),
            full_report_needed=self._complete.get(engine.engine_id) != engine.epoch,
        )

    def fence_older(self, engine: Engine) -> None:
        """Ends the leases on what the engine held under earlier registrations."""
        for record in self._ledger.on_engine(engine.engine_id):
            if record.lease.engine_epoch < engine.epoch:
                self._ledger.end(record, EndReason.FENCED, self._clock.now())

    def forget(self, engine_id: str) -> None:
        """Forgets an engine that is gone."""
        self._complete.pop(engine_id, None)
        self._directives.forget(engine_id)

    async def _grant(self, engine: Engine, retention: RetentionReport) -> None:
        adopted = self._adoptable(retention)
        if adopted is not None and await self._issuer.adopt(retention.fencing_token):
            lease_id, token = adopted, retention.fencing_token
        else:
            lease_id = lease_id_for(
                engine.engine_id, engine.epoch, retention.retention_id, taken=self._ledger.knows
            )
            token = await self._issuer.next()
        now = self._clock.now()
        record = self._ledger.grant(
            Lease(
                lease_id=lease_id,
                session_key=retention.session_key,
                engine_id=engine.engine_id,
                engine_epoch=engine.epoch,
                retention_id=retention.retention_id,
                fencing_token=token,
                tokens=retention.tokens,
                blocks=retention.blocks,
                handle=retention.handle,
                decision_id=retention.decision_id,
                message_digest=retention.message_digest,
                reads=retention.reads,
                create_time=self._clock.wall(),
            ),
            ttl=self._config.ttl,
            now=now,
            renewable=True,
        )
        self._hold(record, retention, now)

    def _adoptable(self, retention: RetentionReport) -> str | None:
        # A lease that is known here, live elsewhere or ended, is never taken up again.
        lease_id = lease_id_of(retention.lease)
        return None if lease_id is None or self._ledger.knows(lease_id) else lease_id

    def _refresh(self, record: Record, retention: RetentionReport) -> None:
        now = self._clock.now()
        lease = record.lease
        if retention.reads > lease.reads:
            record.used_at = now
        if (retention.lease, retention.fencing_token) != (lease.name, lease.fencing_token):
            record.told = False
        self._hold(record, retention, now)
        self._ledger.update(
            record,
            replace(
                lease,
                tokens=retention.tokens,
                blocks=retention.blocks,
                handle=retention.handle,
                reads=max(lease.reads, retention.reads),
            ),
        )

    def _hold(self, record: Record, retention: RetentionReport, now: float) -> None:
        remaining = min(retention.remaining, self._config.max_fixed_ttl)
        self._ledger.hold_until(record, now + remaining)

    def _count_reads(self, engine: Engine, report: EngineReport, now: float) -> None:
        for retention_id, reads in report.reads:
            record = self._ledger.retention(engine.engine_id, retention_id)
            if record is not None and reads > record.lease.reads:
                record.used_at = now
                self._ledger.update(record, replace(record.lease, reads=reads))

    def _end_reported(self, engine: Engine, report: EngineReport, now: float) -> None:
        for retention_id, reason in report.ended:
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
