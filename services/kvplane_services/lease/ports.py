"""What others ask of the lease manager, in the same process or over gRPC."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvplane_services.lease.model import RenewalOutcome


@dataclass(frozen=True, slots=True)
class LeaseRenewal:
    """A claim to make on a lease for `ttl` seconds (0: the manager's default), or to drop."""

    lease: str
    fencing_token: int
    ttl: float = 0.0
    drop: bool = False


class LeaseControl(Protocol):
    """What the router and the session registry ask of the lease manager."""

    async def renew(self, holder: str, renewals: Sequence[LeaseRenewal]) -> Sequence[RenewalOutcome]:
        """Claims leases for a holder; one outcome per renewal, in order. Raises Unavailable."""
        ...

    async def release(self, lease: str, fencing_token: int) -> None:
        """Ends a lease. Succeeds if it is gone. Raises LeaseFenced, Unavailable."""
        ...
