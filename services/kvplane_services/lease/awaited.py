"""Retentions that were reported and have no lease yet, and what else is known of reporting engines.

A grant needs a token, and so a store that answers. Until then the engine's own first TTL holds the
blocks, and the engine need not report them again.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

from kvplane_services.lease.reports import EngineReport, RetentionReport


@dataclass(frozen=True, slots=True)
class Awaited:
    """A retention that waits for its lease, and when it was reported, on the monotonic clock."""

    retention: RetentionReport
    reported_at: float


@dataclass(slots=True)
class Reporting:
    """An engine that reports to this replica.

    Attributes:
        lock: Held while a report is taken in, or retentions that wait get their leases.
        complete: Epoch of the last full report. Without one the plane may know of some
            retentions only.
        fenced: Epoch up to which leases of earlier registrations were ended.
        taken: Whether its home moved here, and its leases were not compared with the table since.
        awaiting: What waits for a lease, by retention.

    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    complete: int = 0
    fenced: int = 0
    taken: bool = False
    awaiting: dict[str, Awaited] = field(default_factory=dict)

    def forget_ended(self, report: EngineReport) -> None:
        """Lets nothing wait that the engine holds no longer."""
        reported = {retention.retention_id for retention in report.retentions}
        if report.full:
            self.awaiting = _only(self.awaiting, reported)
        for retention_id, _ in report.ended:
            if retention_id not in reported:
                self.awaiting.pop(retention_id, None)


class ReportingEngines:
    """Engines that report to this replica, by id; and a sign that some wait for leases."""

    def __init__(self) -> None:
        self._engines: dict[str, Reporting] = {}
        self.some_wait = asyncio.Event()

    def of(self, engine_id: str) -> Reporting:
        """What is known of an engine."""
        known = self._engines.get(engine_id)
        if known is None:
            known = self._engines[engine_id] = Reporting()
        return known

    def waiting(self) -> list[str]:
        """Ids of engines with retentions that wait for leases."""
        return [engine_id for engine_id, known in self._engines.items() if known.awaiting]

    def forget(self, engine_id: str) -> None:
        """Forgets an engine that is gone, or is somebody else's."""
        self._engines.pop(engine_id, None)


def _only(awaiting: dict[str, Awaited], kept: Collection[str]) -> dict[str, Awaited]:
    return {name: awaited for name, awaited in awaiting.items() if name in kept}
