"""The leases that ended here, for as long as they are remembered."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from kvplane_services.lease.model import EndReason, Handle, Lease, LeaseState

# What an ended lease has: nobody may read its blocks, and proofs take memory.
_NO_HANDLE = Handle(b"{}")


def as_ended(lease: Lease, reason: EndReason, *, reads: int) -> Lease:
    """A live lease once it is over. What it was being released for stands before `reason`."""
    return replace(
        lease,
        state=LeaseState.ENDED,
        end_reason=lease.release_reason or reason,
        release_reason=None,
        handle=_NO_HANDLE,
        reads=reads,
    )


@dataclass(slots=True)
class Ended:
    """An ended lease, until when it is remembered, and its store revision (0: not written)."""

    lease: Lease
    until: float
    revision: int


class EndedLeases:
    """Ended leases in the order of their ends.

    Args:
        remember: For how long, in seconds.
        limit: How many.

    """

    def __init__(self, *, remember: float, limit: int) -> None:
        self._remember = remember
        self._limit = limit
        self._ended: OrderedDict[str, Ended] = OrderedDict()
        # Revisions of those that are forgotten here, and not yet deleted from the store.
        self._leaving: dict[str, int] = {}
        self._counts = dict.fromkeys(EndReason, 0)

    def __contains__(self, lease_id: object) -> bool:
        return lease_id in self._ended or lease_id in self._leaving

    def __iter__(self) -> Iterator[Lease]:
        return (ended.lease for ended in self._ended.values())

    def find(self, lease_id: str) -> Lease | None:
        """The ended lease of that id."""
        found = self._ended.get(lease_id)
        return found.lease if found else None

    def add(self, lease: Lease, now: float, *, revision: int) -> None:
        """Remembers a lease that ended."""
        if lease.end_reason is not None and lease.lease_id not in self:
            self._counts[lease.end_reason] += 1
        self._ended[lease.lease_id] = Ended(lease, now + self._remember, revision)

    @property
    def counts(self) -> Mapping[EndReason, int]:
        """How many have ended for each reason, since this process began."""
        return self._counts

    def drop(self, lease_id: str) -> None:
        """Forgets a lease that is not to be deleted from the store either."""
        self._ended.pop(lease_id, None)
        self._leaving.pop(lease_id, None)

    def forget_old(self, now: float) -> list[str]:
        """Forgets those whose time is up, or that are too many; they are to be deleted."""
        forgotten: list[str] = []
        while self._ended:
            lease_id, ended = next(iter(self._ended.items()))
            if ended.until > now and len(self._ended) <= self._limit:
                break
            del self._ended[lease_id]
            self._leaving[lease_id] = ended.revision
            forgotten.append(lease_id)
        return forgotten

    def revision(self, lease_id: str) -> int:
        """Store revision of an ended lease, of one that is to be deleted too; 0 if unknown."""
        found = self._ended.get(lease_id)
        return found.revision if found else self._leaving.get(lease_id, 0)

    def set_revision(self, lease_id: str, revision: int) -> None:
        """Notes the store revision of an ended lease; 0 once it was deleted."""
        if lease_id in self._ended:
            self._ended[lease_id].revision = revision
        elif revision and lease_id in self._leaving:
            self._leaving[lease_id] = revision
        else:
            self._leaving.pop(lease_id, None)
