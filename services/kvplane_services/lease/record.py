"""What the home of an engine knows of a lease, beyond what is written of it."""

from dataclasses import dataclass

from kvplane_services.lease.claims import Claims
from kvplane_services.lease.model import EndReason, Lease, LeaseState
from kvplane_services.lease.return_kinds import Kind


@dataclass(slots=True, eq=False)
class Record:
    """A live lease at its engine's home; times in seconds on the monotonic clock.

    There may be a million of them: the lease is the one that the table's copy holds, and what few
    of them have is made when it is needed.
    """

    lease: Lease
    # TTL of the last renewal, and when that was.
    ttl: float
    renewed_at: float
    # When the lease expires unless it is renewed; None once it is over.
    deadline: float | None
    # Last grant or read, or end of a claim at another replica.
    used_at: float
    # Reads that the engine counted; the lease has those of when it was last written.
    reads: int
    # What its conversation's return is foretold from.
    kind: Kind
    # Store revision of the lease; 0 if it is not written.
    revision: int = 0
    # Whether the engine was told the lease's name, or to release it.
    told: bool = False
    # Claims of holders at this replica.
    claims: Claims | None = None

    @property
    def lease_id(self) -> str:
        """Id of the lease."""
        return self.lease.lease_id

    @property
    def fencing_token(self) -> int:
        """Its fencing token."""
        return self.lease.fencing_token

    @property
    def release(self) -> EndReason | None:
        """Why it is RELEASING, or None."""
        return self.lease.release_reason if self.lease.state is LeaseState.RELEASING else None

    @property
    def renewable(self) -> bool:
        """False for engines that hold blocks for a fixed time."""
        return self.lease.ttl == 0
