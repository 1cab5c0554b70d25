"""Who wants a lease of an own engine kept: holders here, and at other replicas."""

from collections.abc import Iterable

from kvplane_services.lease.claim_notes import ClaimNotes
from kvplane_services.lease.model import Claim, Lease, LeaseState
from kvplane_services.lease.record import Record


class Holders:
    """Joins the claims that were made here with those that other replicas tell of.

    Args:
        notes: What other replicas tell.

    """

    def __init__(self, *, notes: ClaimNotes) -> None:
        self._notes = notes

    def claimed(self, record: Record, now: float) -> bool:
        """Whether anybody claims a lease."""
        claims = record.claims
        if claims is not None:
            if claims.count(now):
                return True
            record.used_at = max(record.used_at, claims.last_use(now))
            record.claims = None
        return self._notes.claimed(record.lease_id, record.fencing_token)

    def claims(self, record: Record, now: float) -> tuple[Claim, ...]:
        """The claims on a lease, as `shown`."""
        here = record.claims.standing(now) if record.claims else ()
        elsewhere = self._notes.claims(record.lease_id, record.fencing_token)
        return shown(record.lease, (*here, *elsewhere))


def shown(lease: Lease, claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """What is told of the claims on a lease: one for each holder, by name.

    A session claims its lease at whichever replica it was touched at; of its claims the longest
    one that is known counts. It wants nothing of a lease that is being released, whose holders
    are the turns that still use it.
    """
    longest: dict[str, Claim] = {}
    for claim in claims:
        other = longest.get(claim.holder)
        if other is None or claim.remaining > other.remaining:
            longest[claim.holder] = claim
    released = lease.state is not LeaseState.ACTIVE
    return tuple(
        claim
        for holder, claim in sorted(longest.items())
        if not (released and holder.startswith("sessions/"))
    )
