"""Which lease of each session is the newest one, over the whole plane."""

from kvplane_services.lease.model import Lease
from kvplane_services.lease.record import Record
from kvplane_services.session.model import SessionKey


def is_newer(one: Record | Lease, other: Record | Lease) -> bool:
    """Whether a lease supersedes another: its token is larger.

    Replicas that cannot reach each other may grant the same token after a clock ran ahead; then
    the ids decide, the same everywhere.
    """
    return (one.fencing_token, one.lease_id) > (other.fencing_token, other.lease_id)


class Newest:
    """Of each session, the active lease with the largest token, on whatever engine.

    Holds a record where this replica is the engine's home, and else the lease as it was seen.
    """

    def __init__(self) -> None:
        self._leases: dict[SessionKey, Record | Lease] = {}

    def find(self, key: SessionKey) -> Record | Lease | None:
        """The session's newest lease."""
        return self._leases.get(key)

    def enter(self, key: SessionKey, lease: Record | Lease) -> Record | Lease | None:
        """Enters an active lease, and returns what it supersedes, or itself if that is newer.

        Another state of the same lease takes the place of the one before, and supersedes nothing.
        """
        other = self._leases.get(key)
        if other is None or other.lease_id == lease.lease_id:
            self._leases[key] = lease
            return None
        if is_newer(other, lease):
            return lease
        # The key of the old entry would keep the old lease's parts in memory.
        del self._leases[key]
        self._leases[key] = lease
        return other

    def leave(self, key: SessionKey, lease_id: str) -> None:
        """Takes a lease out that is no longer active. Does nothing if it is not the newest."""
        held = self._leases.get(key)
        if held is not None and held.lease_id == lease_id:
            del self._leases[key]
