"""Goes on with a lease that somebody else wrote meanwhile.

Others than an engine's home write its leases in two cases: a replica releases one whose home is
elsewhere, and a home before this one wrote last. Neither is lost, nor written over.
"""

from kvplane_services.clock import Clock
from kvplane_services.lease.ledger import Ledger
from kvplane_services.lease.model import Lease, LeaseState
from kvplane_services.lease.record import Record
from kvplane_services.store.model import Versioned


class Merger:
    """Brings the ledger in line with what is written of its leases."""

    def __init__(self, *, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock

    def merge(self, lease_id: str, found: Versioned[Lease] | None, *, rewrite: bool) -> bool:
        """Takes in what is written of a lease that the ledger knows.

        Args:
            lease_id: Which.
            found: What is written, or None if nothing is.
            rewrite: Whether a change of this replica waits to be written.

        Returns:
            Whether the lease is to be written, as the ledger has it now.

        """
        record = self._ledger.find(lease_id)
        self._ledger.set_revision(lease_id, found.revision if found else 0)
        if record is None:
            # It has ended here, and the first end stands.
            return found is None or found.value.state is not LeaseState.ENDED
        if found is None or found.value.fencing_token < record.fencing_token:
            return True
        return self._merge_live(record, found.value, found.revision, rewrite=rewrite)

    def _merge_live(self, record: Record, lease: Lease, revision: int, *, rewrite: bool) -> bool:
        if lease.state is LeaseState.ENDED:
            self._ledger.take_end(record, lease, revision=revision, now=self._clock.now())
            return False
        if rewrite and lease.fencing_token == record.fencing_token:
            self._ledger.take_release(record, lease)
        else:
            self._ledger.take_over(record, lease)
        return record.lease != lease
