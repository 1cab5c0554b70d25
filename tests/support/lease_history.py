"""What a store shared by replicas was told of each lease, and whether that was in good order."""

from collections import Counter
from contextlib import suppress

from kvplane_services.adapters.records import LEASES
from kvplane_services.errors import WatchTooOld
from kvplane_services.lease.model import Lease, LeaseState
from kvplane_services.store.model import Upserted
from tests.support.cut_store import SharedStore

_ORDER = (LeaseState.ACTIVE, LeaseState.RELEASING, LeaseState.ENDED)


class LeaseHistory:
    """Follows every write of a lease, and refuses one that goes backwards.

    Attributes:
        last: The last state of each lease, by name.
        ends: How often each lease ended.

    """

    def __init__(self, shared: SharedStore) -> None:
        self._table = shared.memory.table(LEASES)
        self.last: dict[str, Lease] = {}
        self.ends: Counter[str] = Counter()
        self.faults: list[str] = []
        # Whether all replicas have reached the store all the time: then they agree on reasons.
        self.whole = True

    async def run(self) -> None:
        """Follows until cancelled."""
        while True:
            # The store that lost everything sends what was put back.
            with suppress(WatchTooOld):
                async for event in self._table.watch():
                    if isinstance(event, Upserted):
                        self._take(event.value)

    def _take(self, lease: Lease) -> None:
        before = self.last.get(lease.name)
        self.last[lease.name] = lease
        if before is None or before.state is not LeaseState.ENDED:
            self.ends[lease.name] += lease.state is LeaseState.ENDED
        elif self.whole or (lease.state, lease.end_reason) != (before.state, before.end_reason):
            # Without a loss nobody writes it again; after one it says the same.
            self.faults.append(f"{lease.name} was {before.end_reason}, then {lease}")
        if before is None:
            return
        if _ORDER.index(lease.state) < _ORDER.index(before.state):
            self.faults.append(f"{lease.name} went from {before.state} to {lease.state}")
        if before.fencing_token != lease.fencing_token:
            self.faults.append(f"{lease.name} has another token")
        reasons = (before.release_reason, lease.release_reason or lease.end_reason)
        released = self.whole and before.state is LeaseState.RELEASING
        if released and reasons[0] is not reasons[1]:
            self.faults.append(f"{lease.name} was {reasons[0]}, then {reasons[1]}")
