"""The leases of one engine at its home."""

from collections.abc import Iterable

from kvplane_services.lease.due_times import DueTimes
from kvplane_services.lease.model import LeaseState
from kvplane_services.lease.record import Record

# Renewals come due in as many steps as this within an interval: a frame looks at a few of them.
_STEPS = 32


class Shelf:
    """One engine's records, and which of them its next frame is about.

    Args:
        renew_interval: How long after a renewal the next one is due, in seconds.

    """

    def __init__(self, *, renew_interval: float) -> None:
        self._interval = renew_interval
        # By retention, oldest grant first.
        self.records: dict[str, Record] = {}
        # KV blocks of the leases that are not on their way out.
        self.kept_blocks = 0
        self._untold: list[Record] = []
        self._renewals: DueTimes[Record] = DueTimes(
            width=renew_interval / _STEPS, due=self._renewal_due
        )

    def add(self, record: Record) -> None:
        """Puts a record on the shelf."""
        self.records[record.lease.retention_id] = record
        if record.lease.state is LeaseState.ACTIVE:
            self.kept_blocks += record.lease.blocks
            if record.renewable:
                self._renewals.add(record)
        self.tell(record)

    def remove(self, record: Record) -> None:
        """Takes a record off that is over."""
        del self.records[record.lease.retention_id]
        if record.lease.state is LeaseState.ACTIVE:
            self.kept_blocks -= record.lease.blocks

    def tell(self, record: Record) -> None:
        """Notes that the engine is to be told of a lease, or of its release."""
        record.told = False
        self._untold.append(record)

    def take_untold(self) -> list[Record]:
        """The records that the engine is to be told of, each once; they count as told."""
        taken: list[Record] = []
        for record in self._untold:
            if not record.told and record.deadline is not None:
                record.told = True
                taken.append(record)
        self._untold.clear()
        return taken

    def take_due(self, now: float) -> list[Record]:
        """The records whose renewal is due; put those back that are not renewed."""
        return self._renewals.pop_due(now)

    def put_back(self, records: Iterable[Record]) -> None:
        """Files records for their next renewal."""
        for record in records:
            self._renewals.add(record)

    def _renewal_due(self, record: Record) -> float | None:
        if record.deadline is None or record.release is not None:
            return None
        return record.renewed_at + self._interval
