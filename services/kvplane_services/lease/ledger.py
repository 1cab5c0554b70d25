"""The book of leases: every live one, the ended ones that are remembered, and their deadlines.

Rules of the book, whoever writes into it:
- of a session's leases only the one with the largest fencing token is active;
- a deadline never moves to an earlier time;
- a lease ends once, and the first reason stands.

Nothing here waits. Every method takes `now` in seconds on the monotonic clock.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from kvplane_services.deadlines import Deadlines
from kvplane_services.lease.claims import Claims
from kvplane_services.lease.model import EndReason, Handle, Lease, LeaseState
from kvplane_services.session.model import SessionKey

# What an ended lease has: nobody may read its blocks, and proofs take memory.
_NO_HANDLE = Handle(b"{}")


@dataclass(slots=True)
class Record:
    """A live lease and what only the manager knows of it; times on the monotonic clock."""

    lease: Lease
    # TTL of the last renewal, in seconds, and when that was.
    ttl: float
    renewed_at: float
    # Last grant or read.
    used_at: float
    # False for engines that hold blocks for a fixed time.
    renewable: bool = True
    # Why it is RELEASING.
    release: EndReason | None = None
    # Whether the engine was told the lease's name, or to release it.
    told: bool = False
    claims: Claims = field(default_factory=Claims)

    @property
    def lease_id(self) -> str:
        """Id of the lease."""
        return self.lease.lease_id

    def idle(self, now: float) -> float:
        """Seconds since anybody used or wanted the lease."""
        return now - max(self.used_at, self.claims.last_use(now))


class Ledger:
    """Holds the records and keeps the rules.

    Args:
        grace: How much later than the engine the plane calls a lease expired, in seconds.
        remember_ended: How long ended leases are remembered, in seconds.
        max_ended: How many of them.

    """

    def __init__(self, *, grace: float, remember_ended: float, max_ended: int) -> None:
        self._grace = grace
        self._remember_ended = remember_ended
        self._max_ended = max_ended
        self._records: dict[str, Record] = {}
        self._by_engine: dict[str, dict[str, Record]] = {}
        self._by_session: dict[SessionKey, str] = {}
        self._deadlines = Deadlines()
        self._ended: OrderedDict[str, tuple[Lease, float]] = OrderedDict()
        self._changed: list[Lease] = []
        self._forgotten: list[str] = []

    def find(self, lease_id: str) -> Record | None:
        """The live lease of that id, active or releasing."""
        return self._records.get(lease_id)

    def find_ended(self, lease_id: str) -> Lease | None:
        """The ended lease of that id, while it is remembered."""
        found = self._ended.get(lease_id)
        return found[0] if found else None

    def knows(self, lease_id: str) -> bool:
        """Whether the id is or was that of a lease."""
        return lease_id in self._records or lease_id in self._ended

    def on_engine(self, engine_id: str) -> list[Record]:
        """Live leases on an engine, oldest grant first."""
        return list(self._by_engine.get(engine_id, {}).values())

    def retention(self, engine_id: str, retention_id: str) -> Record | None:
        """The live lease on a retention."""
        return self._by_engine.get(engine_id, {}).get(retention_id)

    def active(self, key: SessionKey) -> Record | None:
        """The session's active lease."""
        lease_id = self._by_session.get(key)
        return self._records.get(lease_id) if lease_id else None

    def engines(self) -> list[str]:
        """Ids of the engines that have live leases."""
        return list(self._by_engine)

    def deadline(self, record: Record) -> float:
        """When the plane calls the lease expired unless it is renewed."""
        deadline = self._deadlines.get(record.lease_id)
        return record.renewed_at + record.ttl + self._grace if deadline is None else deadline

    def grant(self, lease: Lease, *, ttl: float, now: float, renewable: bool) -> Record:
        """Enters an active lease, and releases what it supersedes or, if older, itself."""
        record = Record(lease=lease, ttl=ttl, renewed_at=now, used_at=now, renewable=renewable)
        self._records[lease.lease_id] = record
        self._by_engine.setdefault(lease.engine_id, {})[lease.retention_id] = record
        self._deadlines.set(lease.lease_id, now + ttl + self._grace)
        self._changed.append(lease)
        other = self.active(lease.session_key)
        if other is None or other.lease.fencing_token < lease.fencing_token:
            self._by_session[lease.session_key] = lease.lease_id
            older = other
        else:
            older = record
        if older is not None:
            self.release(older, EndReason.SUPERSEDED)
        return record

    def renew(self, record: Record, *, ttl: float, now: float) -> None:
        """Moves the deadline to `ttl` from now, unless it is later already."""
        record.renewed_at = now
        record.ttl = ttl
        self.hold_until(record, now + ttl)

    def hold_until(self, record: Record, until: float) -> None:
        """Notes that the engine holds the blocks until then, if that is later than was known."""
        deadline = until + self._grace
        if deadline > self.deadline(record):
            self._deadlines.set(record.lease_id, deadline)

    def update(self, record: Record, lease: Lease) -> None:
        """Replaces what is known of the lease, and tells followers if they can see a difference."""
        before = replace(record.lease, reads=lease.reads)
        record.lease = lease
        if before != lease:
            self._changed.append(lease)

    def release(self, record: Record, reason: EndReason) -> None:
        """Stops giving out the lease. It ends when the engine says so, or at its deadline."""
        if record.release is not None:
            return
        record.release = reason
        record.told = False
        record.lease = replace(record.lease, state=LeaseState.RELEASING)
        self._changed.append(record.lease)
        self._leave_session(record)

    def end(self, record: Record, reason: EndReason, now: float) -> None:
        """Ends a live lease. What it was being released for stands before `reason`."""
        if self._records.pop(record.lease_id, None) is None:
            return
        retentions = self._by_engine[record.lease.engine_id]
        del retentions[record.lease.retention_id]
        if not retentions:
            del self._by_engine[record.lease.engine_id]
        self._deadlines.drop(record.lease_id)
        self._leave_session(record)
        record.lease = replace(
            record.lease,
            state=LeaseState.ENDED,
            end_reason=record.release or reason,
            handle=_NO_HANDLE,
        )
        self._ended[record.lease_id] = (record.lease, now + self._remember_ended)
        self._changed.append(record.lease)

    def sweep(self, now: float) -> None:
        """Ends what is past its deadline, and forgets what ended long ago."""
        for lease_id in self._deadlines.pop_due(now):
            self.end(self._records[lease_id], EndReason.EXPIRED, now)
        while self._ended:
            lease_id, (_, until) = next(iter(self._ended.items()))
            if until > now and len(self._ended) <= self._max_ended:
                break
            del self._ended[lease_id]
            self._forgotten.append(lease_id)

    def take_changes(self) -> tuple[list[Lease], list[str]]:
        """Leases that changed, in order, and ids of those forgotten, since the last call."""
        taken = self._changed, self._forgotten
        self._changed, self._forgotten = [], []
        return taken

    def live(self) -> Iterable[Record]:
        """Every live lease."""
        return self._records.values()

    def ended(self) -> Iterable[Lease]:
        """Every ended lease that is remembered."""
        return (lease for lease, _ in self._ended.values())

    def _leave_session(self, record: Record) -> None:
        key = record.lease.session_key
        if self._by_session.get(key) == record.lease_id:
            del self._by_session[key]
