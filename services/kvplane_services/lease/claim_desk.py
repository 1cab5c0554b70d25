"""Where holders claim leases."""

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvplane_services.clock import Clock
from kvplane_services.errors import InvalidRequest
from kvplane_services.lease.away_claims import AwayClaims
from kvplane_services.lease.claims import Claims
from kvplane_services.lease.config import LeaseConfig
from kvplane_services.lease.elsewhere import ElsewhereLeases
from kvplane_services.lease.grants import lease_id_of
from kvplane_services.lease.ledger import Ledger
from kvplane_services.lease.model import Lease, LeaseState, RenewalOutcome
from kvplane_services.lease.ports import MAX_HOLDER_BYTES, MAX_RENEWALS, LeaseRenewal
from kvplane_services.lease.record import Record
from kvplane_services.lease.valuation import Valuation


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """What happened to one claim, and the length it was granted, in seconds."""

    outcome: RenewalOutcome
    ttl: float = 0.0


_NOT_FOUND = ClaimResult(RenewalOutcome.NOT_FOUND)


class ClaimDesk:
    """Takes claims on leases. A claim makes the lease's home renew it at its engine.

    Args:
        ledger: Leases of own engines.
        elsewhere: Leases of other replicas' engines.
        away: Claims on the latter.
        valuation: Told of new claims.
        newest_token: The largest token that is known here.
        clock: Time; of day for leases with a fixed end elsewhere.
        config: Durations and bounds.

    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        elsewhere: ElsewhereLeases,
        away: AwayClaims,
        valuation: Valuation,
        newest_token: Callable[[], int],
        clock: Clock,
        config: LeaseConfig,
    ) -> None:
        self._ledger = ledger
        self._elsewhere = elsewhere
        self._away = away
        self._valuation = valuation
        self._newest_token = newest_token
        self._clock = clock
        self._config = config

    def claim(self, holder: str, renewals: Sequence[LeaseRenewal], now: float) -> list[ClaimResult]:
        """Claims leases for a holder, or drops its claims; one result per renewal, in order.

        A lease that is newer than all that this replica has heard of may be another's that it is
        about to hear of: then the answer is UNAVAILABLE.

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
        if lease_id is None:
            return _NOT_FOUND
        record = self._ledger.find(lease_id)
        lease = record.lease if record else self._elsewhere.find(lease_id)
        if lease is None:
            return self._unknown(lease_id, renewal)
        if lease.fencing_token != renewal.fencing_token:
            return ClaimResult(RenewalOutcome.FENCED)
        if renewal.drop:
            # Of a lease that is being released too: a turn's claim ends with the turn.
            self._drop(holder, record, lease, now)
        if lease.state is not LeaseState.ACTIVE:
            return _NOT_FOUND
        if renewal.drop:
            if renewal.final:
                self._expect_no_use(record, lease)
            return ClaimResult(RenewalOutcome.RENEWED)
        ttl = self._config.clamp_claim(renewal.ttl)
        return self._add(holder, record, lease, ttl, now)

    def _unknown(self, lease_id: str, renewal: LeaseRenewal) -> ClaimResult:
        ended = self._ledger.find_ended(lease_id) or self._elsewhere.find_ended(lease_id)
        unheard_of = ended is None and renewal.fencing_token > self._newest_token()
        if unheard_of and (renewal.final or not renewal.drop):
            return ClaimResult(RenewalOutcome.UNAVAILABLE)
        return _NOT_FOUND

    def _drop(self, holder: str, record: Record | None, lease: Lease, now: float) -> None:
        if record is None:
            self._away.drop(lease.lease_id, holder, now)
        elif record.claims is not None:
            record.claims.drop(holder, now)

    def _expect_no_use(self, record: Record | None, lease: Lease) -> None:
        if record is None:
            self._away.tell_final(lease)
        else:
            self._valuation.finished(record)

    def _add(
        self, holder: str, record: Record | None, lease: Lease, ttl: float, now: float
    ) -> ClaimResult:
        claims = record.claims if record else self._away.find(lease.lease_id)
        if claims is not None:
            full = claims.count(now) >= self._config.max_claims
            if full and not claims.holds(holder, now):
                return ClaimResult(RenewalOutcome.UNAVAILABLE)
        if lease.ttl:
            # The engine frees the blocks at its own time, whoever claims them.
            ttl = min(ttl, self._left(record, lease, now))
            if ttl <= 0:
                return _NOT_FOUND
        if record is None:
            self._away.add(lease, holder, now + ttl, now)
        else:
            record.claims = record.claims or Claims()
            if not record.claims.holds(holder, now):
                self._valuation.claimed(record, holder, now)
            record.claims.add(holder, now + ttl, now)
        return ClaimResult(RenewalOutcome.RENEWED, ttl)

    def _left(self, record: Record | None, lease: Lease, now: float) -> float:
        if record is not None:
            return record.renewed_at + record.ttl - now
        return seconds_left(lease, self._clock.wall())


def seconds_left(lease: Lease, wall: dt.datetime) -> float:
    """What is left of a lease of fixed length, by the time of day.

    The one time that replicas compare times of day: nobody renews such a lease, so that there is
    nothing else to count from. Clocks that differ make it too short, or up to its length too long.
    """
    if lease.expire_time is None:
        return lease.ttl
    return min(max((lease.expire_time - wall).total_seconds(), 0.0), lease.ttl)
