"""The lease manager of another process; see `lease.ports.LeaseControl`."""

from collections.abc import Sequence

from kvplane.client.errors import KvplaneClientError
from kvplane.client.plane import Plane
from kvplane_services.adapters.grpc_failures import domain_error
from kvplane_services.lease.model import Lease, RenewalOutcome
from kvplane_services.lease.ports import LeaseRenewal
from kvplane_services.lease.wire import lease_to_wire, outcome_from_wire, renewals_to_wire


class RemoteLeaseControl:
    """Implements `LeaseControl` and `FixedLeaseControl` over LeaseService."""

    def __init__(self, *, plane: Plane) -> None:
        self._plane = plane

    async def renew(
        self, holder: str, renewals: Sequence[LeaseRenewal]
    ) -> Sequence[RenewalOutcome]:
        """See `LeaseControl.renew`."""
        try:
            answer = await self._plane.leases.renew(holder, renewals_to_wire(renewals))
        except KvplaneClientError as error:
            raise domain_error(error) from error
        outcome_of = {result.name: outcome_from_wire(result.outcome) for result in answer.results}
        return [outcome_of.get(renewal.lease, RenewalOutcome.UNAVAILABLE) for renewal in renewals]

    async def release(self, lease: str, fencing_token: int) -> None:
        """See `LeaseControl.release`."""
        try:
            await self._plane.leases.release(lease, fencing_token=fencing_token)
        except KvplaneClientError as error:
            raise domain_error(error) from error

    async def lease_fixed(self, lease: Lease, *, ttl: float, request_id: str) -> None:
        """See `FixedLeaseControl.lease_fixed`."""
        try:
            await self._plane.leases.grant(lease_to_wire(lease), ttl=ttl, request_id=request_id)
        except KvplaneClientError as error:
            raise domain_error(error) from error

    async def consume(self, lease: str, fencing_token: int) -> None:
        """See `FixedLeaseControl.consume`."""
        try:
            await self._plane.leases.consume(lease, fencing_token=fencing_token)
        except KvplaneClientError as error:
            raise domain_error(error) from error
