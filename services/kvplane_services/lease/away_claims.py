"""Claims of holders at this replica on leases whose home is another one."""

from dataclasses import dataclass, field

from kvplane_services.deadlines import Deadlines
from kvplane_services.lease.claim_notes import ClaimNotes
from kvplane_services.lease.claims import Claims
from kvplane_services.lease.model import ClaimNote, Lease


@dataclass(slots=True)
class _Away:
    fencing_token: int
    claims: Claims = field(default_factory=Claims)


class AwayClaims:
    """Claims by lease. The home is told of the first and of the last one's end, not of renewals.

    Args:
        notes: How the home is told.

    """

    def __init__(self, *, notes: ClaimNotes) -> None:
        self._notes = notes
        self._away: dict[str, _Away] = {}
        self._lapses = Deadlines()

    def find(self, lease_id: str) -> Claims | None:
        """The claims on a lease, or None if there are none."""
        away = self._away.get(lease_id)
        return away.claims if away else None

    def add(self, lease: Lease, holder: str, until: float, now: float) -> None:
        """Makes or renews a claim."""
        away = self._away.get(lease.lease_id)
        if away is None:
            away = self._away[lease.lease_id] = _Away(lease.fencing_token)
        first = not away.claims.count(now)
        away.claims.add(holder, until, now)
        self._note(lease.lease_id, away, tell=first)

    def drop(self, lease_id: str, holder: str, now: float) -> None:
        """Gives a claim up. Does nothing if there is none."""
        away = self._away.get(lease_id)
        if away is None:
            return
        away.claims.drop(holder, now)
        if away.claims.count(now):
            self._note(lease_id, away, tell=False)
        else:
            self.forget(lease_id)

    def tell_final(self, lease: Lease) -> None:
        """Tells the home that no further use of a lease is expected; a claim takes that back."""
        away = self._away.setdefault(lease.lease_id, _Away(lease.fencing_token))
        note = ClaimNote(away.fencing_token, away.claims.holders(), final=True)
        self._notes.note(lease.lease_id, note)

    def enter(self, lease: Lease, claims: Claims, now: float) -> None:
        """Takes over the claims on a lease whose home is another replica now."""
        if claims.count(now):
            away = self._away[lease.lease_id] = _Away(lease.fencing_token, claims)
            self._note(lease.lease_id, away, tell=True)

    def take(self, lease_id: str) -> Claims | None:
        """Takes out and returns the claims on a lease whose home is this replica now."""
        claims = self.find(lease_id)
        self.forget(lease_id)
        return claims

    def forget(self, lease_id: str) -> None:
        """Forgets all claims on a lease. Does nothing if there are none."""
        if self._away.pop(lease_id, None) is not None:
            self._lapses.drop(lease_id)
            self._notes.withdraw(lease_id)

    def sweep(self, now: float) -> None:
        """Forgets the claims that ran out."""
        for lease_id in self._lapses.pop_due(now):
            self.forget(lease_id)

    def _note(self, lease_id: str, away: _Away, *, tell: bool) -> None:
        until = away.claims.until()
        if until is not None:
            self._lapses.set(lease_id, until)
        if tell:
            self._notes.note(lease_id, ClaimNote(away.fencing_token, away.claims.holders()))
