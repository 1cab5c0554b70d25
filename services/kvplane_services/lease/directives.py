"""Says what an engine is to do with its retentions: what to hold for longer, what to give up."""

import logging
from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from kvplane_services.engine.model import Engine
from kvplane_services.lease.config import LeaseConfig
from kvplane_services.lease.holders import Holders
from kvplane_services.lease.ledger import Ledger
from kvplane_services.lease.model import EndReason
from kvplane_services.lease.policy import (
    Holding,
    few_blocks,
    lacks_blocks,
    leases_to_give_up,
    leases_to_keep,
)
from kvplane_services.lease.record import Record
from kvplane_services.lease.reports import Directive
from kvplane_services.lease.return_kinds import Hint
from kvplane_services.lease.shelf import Shelf
from kvplane_services.lease.valuation import Valuation

_log = logging.getLogger(__name__)

# How often within a renewal interval the leases of an engine with too many are weighed.
_WEIGHINGS = 10


class Directives:
    """Carries the policy out, and remembers what each engine was told."""

    def __init__(
        self, *, ledger: Ledger, holders: Holders, valuation: Valuation, config: LeaseConfig
    ) -> None:
        self._ledger = ledger
        self._holders = holders
        self._valuation = valuation
        self._config = config
        # What is kept of an engine that has too much, and until when that stands: weighing all
        # its leases for every frame would cost more than the rest of the frame.
        self._kept: dict[str, tuple[float, AbstractSet[str]]] = {}
        # Since when requests wait for blocks, by engine.
        self._lacking: dict[str, float] = {}

    def of(self, engine: Engine, now: float, *, everything: bool) -> tuple[Directive, ...]:
        """What to tell an engine now.

        The answer to a stream's frame has arrived when the next frame comes, so each thing is
        said once; `everything` says it all again, to a new stream.
        """
        pressed = self._relieve(engine, now)
        shelf = self._ledger.shelf(engine.engine_id)
        if shelf is None:
            return ()
        untold = shelf.take_untold()
        due = list(shelf.records.values()) if everything else shelf.take_due(now)
        kept = set() if pressed else self._worth_keeping(engine, shelf, due, now)
        kept.update(record.lease_id for record in untold)
        directives: list[Directive] = []
        for record in due if everything else _each_once(untold, due):
            if record.release is not None:
                directives.append(_directive(record, release=record.release))
            elif record.lease_id in kept:
                self._ledger.renew(record, ttl=self._config.ttl, now=now)
                claimed = self._holders.claimed(record, now)
                worth = self._valuation.worth(record, now, claimed=claimed)
                directives.append(_directive(record, renew=self._config.ttl, worth=worth))
        if not everything:
            shelf.put_back(due)
        return tuple(directives)

    def forget(self, engine_id: str) -> None:
        """Forgets an engine that is gone."""
        self._lacking.pop(engine_id, None)
        self._kept.pop(engine_id, None)

    def _worth_keeping(
        self, engine: Engine, shelf: Shelf, due: Iterable[Record], now: float
    ) -> set[str]:
        """Ids of those leases that are due which the policy renews."""
        budget = self._budget_blocks(engine)
        live = [record for record in due if record.release is None]
        if not live:
            return set()
        wanted = {
            record.lease_id
            for record in live
            if self._holders.claimed(record, now) or now - record.used_at < self._idle_keep(record)
        }
        if shelf.kept_blocks <= budget:
            # All that are wanted fit, so that none need be weighed against the others.
            self._kept.pop(engine.engine_id, None)
            return wanted
        until, kept = self._kept.get(engine.engine_id, (now, frozenset[str]()))
        if until <= now:
            kept = leases_to_keep(
                self._holdings(shelf, now), budget_blocks=budget, idle_keep=self._config.idle_keep
            )
            until = now + self._config.renew_interval / _WEIGHINGS
            self._kept[engine.engine_id] = until, kept
        return wanted.intersection(kept)

    def _idle_keep(self, record: Record) -> float:
        final = record.kind.hint is Hint.FINAL
        return self._config.final_keep if final else self._config.idle_keep

    def _budget_blocks(self, engine: Engine) -> float:
        if engine.layout is None:
            return float("inf")
        budget = engine.retention_budget
        if budget is None:
            budget = self._config.retention_budget
        return engine.layout.total_blocks * budget

    def _relieve(self, engine: Engine, now: float) -> bool:
        """Releases idle leases where requests wait for blocks; returns whether they do."""
        if engine.layout is None:
            return False
        if engine.load.waiting_requests < 1:
            self._lacking.pop(engine.engine_id, None)
            return False
        total = engine.layout.total_blocks
        shelf = self._ledger.shelf(engine.engine_id)
        holdings = self._holdings(shelf, now) if shelf else []
        few = few_blocks(holdings, total_blocks=total, share=self._config.pressure_free)
        if not lacks_blocks(engine.load, total_blocks=total, few_blocks=few):
            self._lacking.pop(engine.engine_id, None)
            return False
        if now - self._lacking.setdefault(engine.engine_id, now) < self._config.pressure_after:
            return False
        # What is on its way out counts as free already.
        free = total - engine.load.used_blocks + (_releasing_blocks(shelf) if shelf else 0)
        for lease_id in leases_to_give_up(holdings, blocks=few - free):
            record = self._ledger.find(lease_id)
            if record is not None:
                self._ledger.release(record, EndReason.RECLAIMED)
                _log.info("%s is short of blocks: gives up %s", engine.name, record.lease.name)
        return True

    def _holdings(self, shelf: Shelf, now: float) -> list[Holding]:
        holdings: list[Holding] = []
        for record in shelf.records.values():
            if record.release is None:
                claimed = self._holders.claimed(record, now)
                holdings.append(
                    Holding(
                        lease_id=record.lease_id,
                        blocks=record.lease.blocks,
                        fencing_token=record.fencing_token,
                        idle=0.0 if claimed else now - record.used_at,
                        claimed=claimed,
                        worth=self._valuation.worth(record, now, claimed=claimed),
                    )
                )
        return holdings


def _each_once(untold: list[Record], due: list[Record]) -> list[Record]:
    told = {record.lease_id for record in untold}
    return [*untold, *(record for record in due if record.lease_id not in told)]


def _releasing_blocks(shelf: Shelf) -> int:
    return sum(
        record.lease.blocks for record in shelf.records.values() if record.release is not None
    )


def _directive(
    record: Record, *, renew: float = 0.0, release: EndReason | None = None, worth: float = 0.0
) -> Directive:
    return Directive(
        retention_id=record.lease.retention_id,
        lease=record.lease.name,
        fencing_token=record.fencing_token,
        renew=renew,
        release=release,
        worth=worth,
    )
