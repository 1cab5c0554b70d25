"""Says what an engine is to do with its retentions: what to hold for longer, what to give up."""

import logging

from kvplane_services.engine.model import Engine
from kvplane_services.lease.config import LeaseConfig
from kvplane_services.lease.ledger import Ledger, Record
from kvplane_services.lease.model import EndReason
from kvplane_services.lease.policy import (
    Holding,
    few_blocks,
    lacks_blocks,
    leases_to_give_up,
    leases_to_keep,
)
from kvplane_services.lease.reports import Directive

_log = logging.getLogger(__name__)


class Directives:
    """Carries the policy out, and remembers what each engine was told."""

    def __init__(self, *, ledger: Ledger, config: LeaseConfig) -> None:
        self._ledger = ledger
        self._config = config
        # Since when requests wait for blocks, by engine.
        self._lacking: dict[str, float] = {}

    def of(self, engine: Engine, now: float, *, everything: bool) -> tuple[Directive, ...]:
        """What to tell an engine now.

        The answer to a stream's frame has arrived when the next frame comes, so each thing is
        said once; `everything` says it all again, to a new stream.
        """
        pressed = self._relieve(engine, now)
        records = self._ledger.on_engine(engine.engine_id)
        due = {
            record.lease_id
            for record in records
            if record.release is None
            and not pressed
            and (everything or now >= record.renewed_at + self._config.renew_interval)
        }
        if due:
            total = engine.layout.total_blocks if engine.layout else float("inf")
            due &= leases_to_keep(
                _holdings(records, now),
                budget_blocks=total * self._config.retention_budget,
                idle_keep=self._config.idle_keep,
            )
        directives: list[Directive] = []
        for record in records:
            if record.release is not None:
                if everything or not record.told:
                    directives.append(_directive(record, release=record.release))
            elif record.lease_id in due or not record.told:
                self._ledger.renew(record, ttl=self._config.ttl, now=now)
                directives.append(_directive(record, renew=self._config.ttl))
            record.told = True
        return tuple(directives)

    def forget(self, engine_id: str) -> None:
        """Forgets an engine that is gone."""
        self._lacking.pop(engine_id, None)

    def _relieve(self, engine: Engine, now: float) -> bool:
        """Releases idle leases where requests wait for blocks; returns whether they do."""
        if engine.layout is None:
            return False
        total = engine.layout.total_blocks
        records = self._ledger.on_engine(engine.engine_id)
        holdings = _holdings(records, now)
        few = few_blocks(holdings, total_blocks=total, share=self._config.pressure_free)
        if not lacks_blocks(engine.load, total_blocks=total, few_blocks=few):
            self._lacking.pop(engine.engine_id, None)
            return False
        if now - self._lacking.setdefault(engine.engine_id, now) < self._config.pressure_after:
            return False
        # What is on its way out counts as free already.
        free = total - engine.load.used_blocks + _releasing_blocks(records)
        for lease_id in leases_to_give_up(holdings, blocks=few - free):
            record = self._ledger.find(lease_id)
            if record is not None:
                self._ledger.release(record, EndReason.RECLAIMED)
                _log.info("%s is short of blocks: gives up %s", engine.name, record.lease.name)
        return True


def _holdings(records: list[Record], now: float) -> list[Holding]:
    return [
        Holding(
            lease_id=record.lease_id,
            blocks=record.lease.blocks,
            fencing_token=record.lease.fencing_token,
            idle=record.idle(now),
            claimed=record.claims.count(now) > 0,
        )
        for record in records
        if record.release is None
    ]


def _releasing_blocks(records: list[Record]) -> int:
    return sum(record.lease.blocks for record in records if record.release is not None)


def _directive(
    record: Record, *, renew: float = 0.0, release: EndReason | None = None
) -> Directive:
    return Directive(
        retention_id=record.lease.retention_id,
        lease=record.lease.name,
        fencing_token=record.lease.fencing_token,
        renew=renew,
        release=release,
    )
