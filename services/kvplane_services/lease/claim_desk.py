"""Where holders claim leases."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvplane_services.errors import InvalidRequest
from kvplane_services.lease.config import LeaseConfig
from kvplane_services.lease.grants import lease_id_of
from kvplane_services.lease.ledger import Ledger, Record
from kvplane_services.lease.model import LeaseState, RenewalOutcome
from kvplane_services.lease.ports import MAX_HOLDER_BYTES, MAX_RENEWALS, LeaseRenewal


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """What happened to one claim, and the length it was granted, in seconds."""

    outcome: RenewalOutcome
    ttl: float = 0.0


class ClaimDesk:
    """Takes claims on leases. A claim makes the manager renew the lease at its engine."""

    def __init__(self, *, ledger: Ledger, config: LeaseConfig) -> None:
        self._ledger = ledger
        self._config = config

    def claim(self, holder: str, renewals: Sequence[LeaseRenewal], now: float) -> list[ClaimResult]:
        """Claims leases for a holder, or drops its claims; one result per renewal, in order.

        Raises:
            InvalidRequest: The holder is missing or too long, or there are too many renewals.

        """
        if not holder or len(holder.encode()) > MAX_HOLDER_BYTES:
            raise InvalidRequest(f"holder needs 1 to {MAX_HOLDER_BYTES} bytes", field="holder")
        if len(renewals) > MAX_RENEWALS:
            raise InvalidRequest(
                f"{len(renewals)} renewals in one frame: send at most {MAX_RENEWALS}",
                field="renewals",
            )
        return [self._claim_one(holder, renewal, now) for renewal in renewals]

    def _claim_one(self, holder: str, renewal: LeaseRenewal, now: float) -> ClaimResult:
        lease_id = lease_id_of(renewal.lease)
        record = self._ledger.find(lease_id) if lease_id else None
        if record is None:
            return ClaimResult(RenewalOutcome.NOT_FOUND)
        if record.lease.fencing_token != renewal.fencing_token:
            return ClaimResult(RenewalOutcome.FENCED)
        if renewal.drop:
            # Of a lease that is being released too: a turn's claim ends with the turn.
            record.claims.drop(holder, now)
        if record.lease.state is not LeaseState.ACTIVE:
            return ClaimResult(RenewalOutcome.NOT_FOUND)
        if renewal.drop:
            return ClaimResult(RenewalOutcome.RENEWED)
        return self._add(holder, record, self._config.clamp_claim(renewal.ttl), now)

    def _add(self, holder: str, record: Record, ttl: float, now: float) -> ClaimResult:
        full = record.claims.count(now) >= self._config.max_claims
        if full and not record.claims.holds(holder, now):
            return ClaimResult(RenewalOutcome.UNAVAILABLE)
        if not record.renewable:
            # The engine frees the blocks at its own time, whoever claims them.
            ttl = min(ttl, record.renewed_at + record.ttl - now)
            if ttl <= 0:
                return ClaimResult(RenewalOutcome.NOT_FOUND)
        record.claims.add(holder, now + ttl, now)
        return ClaimResult(RenewalOutcome.RENEWED, ttl)
