"""What others ask of the lease manager, in the same process or over gRPC, and what it asks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvplane_services.engine.model import Engine
from kvplane_services.lease.model import Lease, RenewalOutcome
from kvplane_services.store.ports import Feed

# The contract's bounds of one frame of renewals; see lease.proto.
MAX_HOLDER_BYTES = 256
MAX_RENEWALS = 1024


@dataclass(frozen=True, slots=True)
class LeaseRenewal:
    """A claim to make on a lease for `ttl` seconds (0: the manager's default), or to drop.

    `final`, with `drop`: the holder expects no further use.
    """

    lease: str
    fencing_token: int
    ttl: float = 0.0
    drop: bool = False
    final: bool = False


class LeaseControl(Protocol):
    """What the router and the session registry ask of the lease manager."""

    async def renew(
        self, holder: str, renewals: Sequence[LeaseRenewal]
    ) -> Sequence[RenewalOutcome]:
        """Claims leases for a holder; one outcome per renewal, in order.

        Raises:
            InvalidRequest: The holder or the number of renewals is out of bounds.
            Unavailable: The manager cannot be reached.

        """
        ...

    async def release(self, lease: str, fencing_token: int) -> None:
        """Ends a lease. Succeeds if it is gone. Raises LeaseFenced, Unavailable."""
        ...


class FixedLeaseControl(Protocol):
    """What the router asks of the lease manager for engines that report nothing."""

    async def lease_fixed(self, lease: Lease, *, ttl: float, request_id: str) -> None:
        """Grants a lease that lasts `ttl` seconds from now; see `LeaseManager.grant`.

        Raises:
            FailedPrecondition, InvalidRequest, NotFound: It is refused.
            Unavailable: The manager or the store cannot be reached.

        """
        ...

    async def consume(self, lease: str, fencing_token: int) -> None:
        """Takes the one read of a lease's retention; who gets an error must not read.

        Raises:
            NotFound: The lease is over.
            FailedPrecondition: Somebody was quicker, or it is too late.
            Unavailable: The manager or the store cannot be reached.

        """
        ...


class Engines(Protocol):
    """What the lease manager asks of the directory of engines, which runs beside it."""

    def find(self, engine_id: str) -> Engine | None:
        """The engine as registered, or None."""
        ...

    def feed(self) -> Feed[Engine]:
        """All engines by id, then every change."""
        ...
