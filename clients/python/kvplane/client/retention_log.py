"""Remembers what the plane has yet to hear of an engine's retentions."""

import threading
from collections.abc import Mapping
from dataclasses import replace

from kvplane.client.retention import EndReason, Report, Retention


class RetentionLog:
    """Implements the reporting half of `RetentionSource`. Safe to use from several threads.

    What is unreported is kept by retention, not as a list of events: a retention that changes
    many times between two frames is one entry, so a plane that is away for long costs no more
    memory than the retentions held and ended since. An entry leaves only when a report
    that holds its latest change is acknowledged.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._version = 0
        self._held: dict[str, Retention] = {}
        # Version of the last unacknowledged change, by retention.
        self._changed: dict[str, int] = {}
        self._ended: dict[str, tuple[EndReason, int]] = {}
        self._read: dict[str, tuple[int, int]] = {}

    @property
    def held(self) -> Mapping[str, Retention]:
        """A copy of what the engine holds, by retention id."""
        with self._lock:
            return dict(self._held)

    def put(self, retention: Retention) -> None:
        """A retention began, or its handle changed."""
        with self._lock:
            self._held[retention.retention_id] = retention
            self._changed[retention.retention_id] = self._next_version()

    def renew(self, retention_id: str, *, deadline: float, lease: str, fencing_token: int) -> None:
        """Notes a renewal that the plane itself ordered, so that it needs no report.

        Unknown retentions are ignored.
        """
        with self._lock:
            if (retention := self._held.get(retention_id)) is not None:
                self._held[retention_id] = replace(
                    retention, deadline=deadline, lease=lease, fencing_token=fencing_token
                )

    def end(self, retention_id: str, reason: EndReason) -> None:
        """A retention ended. Unknown ones, and those that ended before, are ignored."""
        with self._lock:
            if self._held.pop(retention_id, None) is None:
                return
            self._changed.pop(retention_id, None)
            self._read.pop(retention_id, None)
            self._ended[retention_id] = (reason, self._next_version())

    def read(self, retention_id: str, reads: int) -> None:
        """A retention was read `reads` times since it began. Unknown ones are ignored."""
        with self._lock:
            if (retention := self._held.get(retention_id)) is not None and reads > retention.reads:
                self._held[retention_id] = replace(retention, reads=reads)
                self._read[retention_id] = (reads, self._next_version())

    def full_report(self) -> Report:
        """See `RetentionSource.full_report`."""
        with self._lock:
            return self._report(tuple(self._held.values()))

    def changes(self) -> Report:
        """See `RetentionSource.changes`."""
        with self._lock:
            return self._report(tuple(self._held[name] for name in self._changed))

    def acknowledge(self, report: Report) -> None:
        """See `RetentionSource.acknowledge`."""
        with self._lock:
            for retention in report.retentions:
                if self._changed.get(retention.retention_id, report.mark + 1) <= report.mark:
                    del self._changed[retention.retention_id]
            for name, _ in report.ended:
                if name in self._ended and self._ended[name][1] <= report.mark:
                    del self._ended[name]
            for name, _ in report.reads:
                if name in self._read and self._read[name][1] <= report.mark:
                    del self._read[name]

    def _report(self, retentions: tuple[Retention, ...]) -> Report:
        return Report(
            retentions=retentions,
            ended=tuple((name, reason) for name, (reason, _) in self._ended.items()),
            reads=tuple((name, reads) for name, (reads, _) in self._read.items()),
            mark=self._version,
        )

    def _next_version(self) -> int:
        self._version += 1
        return self._version
