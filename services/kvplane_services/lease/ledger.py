"""The book of the leases of the engines that this replica is home of: live ones, and ends.

Rules of the book, whoever writes into it:
- of a session's leases only the one with the largest fencing token is active;
- a deadline never moves to an earlier time;
- a lease ends once, and the first reason stands.

Nothing here waits. Every method takes `now` in seconds on the monotonic clock.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kvplane_services.lease.config import LeaseConfig
from kvplane_services.lease.due_times import DueTimes
from kvplane_services.lease.ended import EndedLeases, as_ended
from kvplane_services.lease.model import EndReason, Lease, LeaseState
from kvplane_services.lease.newest import Newest
from kvplane_services.lease.record import Record
from kvplane_services.lease.return_kinds import Kind
from kvplane_services.lease.shelf import Shelf
from kvplane_services.lease.valuation import Valuation


class Ledger:
    """Holds the records and keeps the rules.

    Args:
        config: Durations and bounds.
        newest: The newest lease of each session, of other replicas' engines too.
        valuation: Told of what is granted and taken up.

    """

    def __init__(self, *, config: LeaseConfig, newest: Newest, valuation: Valuation) -> None:
        self._config = config
        self._valuation = valuation
        self._newest = newest
        self._records: dict[str, Record] = {}
        self._shelves: dict[str, Shelf] = {}
        self._deadlines: DueTimes[Record] = DueTimes(
            width=config.sweep_interval, due=lambda record: record.deadline
        )
        self._ended = EndedLeases(remember=config.remember_ended, limit=config.max_ended)
        # Leases as they are to be written, and ended ones to be forgotten.
        self._changes: dict[str, Lease | None] = {}

    def find(self, lease_id: str) -> Record | None:
        """The live lease of that id, active or releasing."""
        return self._records.get(lease_id)

    def find_ended(self, lease_id: str) -> Lease | None:
        """The ended lease of that id, while it is remembered."""
        return self._ended.find(lease_id)

    def knows(self, lease_id: str) -> bool:
        """Whether the id is or was that of a lease."""
        return lease_id in self._records or lease_id in self._ended

    def shelf(self, engine_id: str) -> Shelf | None:
        """The leases of an engine, or None if it has none."""
        return self._shelves.get(engine_id)

    def on_engine(self, engine_id: str) -> list[Record]:
        """Live leases on an engine, oldest grant first."""
        shelf = self._shelves.get(engine_id)
        return list(shelf.records.values()) if shelf else []

    def retention(self, engine_id: str, retention_id: str) -> Record | None:
        """The live lease on a retention."""
        shelf = self._shelves.get(engine_id)
        return shelf.records.get(retention_id) if shelf else None

    def engines(self) -> list[str]:
        """Ids of the engines that have live leases."""
        return list(self._shelves)

    def deadline(self, record: Record) -> float:
        """When the plane calls the lease expired unless it is renewed."""
        if record.deadline is not None:
            return record.deadline
        return record.renewed_at + record.ttl + self._config.grace

    # -- What happens to leases --------------------------------------------------------------

    def grant(self, lease: Lease, *, ttl: float, now: float) -> Record:
        """Enters an active lease, and releases what it supersedes or, if older, itself."""
        kind = self._valuation.granted(lease, now)
        record = self._add(lease, kind, ttl=ttl, now=now, revision=0)
        self._note(record)
        self._supersede(record)
        return record

    def take_up(self, lease: Lease, *, revision: int, ttl: float, now: float) -> Record:
        """Enters a live lease that another home granted, as it is written."""
        kind = self._valuation.taken_up(lease)
        record = self._add(lease, kind, ttl=ttl, now=now, revision=revision)
        if lease.state is LeaseState.ACTIVE:
            self._supersede(record)
        return record

    def renew(self, record: Record, *, ttl: float, now: float) -> None:
        """Moves the deadline to `ttl` from now, unless it is later already."""
        record.renewed_at = now
        record.ttl = ttl
        self.hold_until(record, now + ttl)

    def hold_until(self, record: Record, until: float) -> None:
        """Notes that the engine holds the blocks until then, if that is later than was known."""
        deadline = until + self._config.grace
        if record.deadline is not None and deadline > record.deadline:
            record.deadline = deadline

    def update(self, record: Record, lease: Lease) -> None:
        """Replaces what is known of a lease whose state stays, and tells if it differs."""
        if lease != record.lease:
            shelf = self._shelves[lease.engine_id]
            if record.release is None:
                shelf.kept_blocks += lease.blocks - record.lease.blocks
            record.lease = lease
            self._note(record)

    def release(self, record: Record, reason: EndReason) -> None:
        """Stops giving out the lease. It ends when the engine says so, or at its deadline."""
        if record.release is None and record.deadline is not None:
            self._begin_release(record, reason)
            self._note(record)

    def end(self, record: Record, reason: EndReason, now: float) -> None:
        """Ends a live lease. What it was being released for stands before `reason`."""
        if record.deadline is None:
            return
        self._remove(record)
        record.lease = lease = as_ended(record.lease, reason, reads=record.reads)
        self._ended.add(lease, now, revision=record.revision)
        self._change(lease.lease_id, lease)

    def sweep(self, now: float) -> None:
        """Ends what is past its deadline, and forgets what ended long ago."""
        for record in self._deadlines.pop_due(now):
            self.end(record, EndReason.EXPIRED, now)
        self._valuation.sweep(now)
        for lease_id in self._ended.forget_old(now):
            self._change(lease_id, None)

    # -- What others did ---------------------------------------------------------------------

    def take_over(self, record: Record, lease: Lease) -> None:
        """Goes on with a live lease as somebody else wrote it. Nothing is written.

        A lease that is on its way out here stays so, whatever was written.
        """
        self.take_release(record, lease)
        if record.lease.state is lease.state:
            if lease.state is LeaseState.ACTIVE:
                self._shelves[lease.engine_id].kept_blocks += lease.blocks - record.lease.blocks
            if record.fencing_token != lease.fencing_token:
                self._shelves[lease.engine_id].tell(record)
            record.lease = lease
            record.reads = max(record.reads, lease.reads)

    def take_release(self, record: Record, lease: Lease) -> None:
        """Goes on with a release that somebody else wrote. Nothing is written."""
        if record.release is None and lease.state is LeaseState.RELEASING:
            self._begin_release(record, lease.release_reason or EndReason.RELEASED)

    def take_end(self, record: Record, lease: Lease, *, revision: int, now: float) -> None:
        """Notes that a lease has ended, as somebody else wrote it. Nothing is written."""
        self._remove(record)
        record.lease = lease
        self._ended.add(lease, now, revision=revision)
        self._changes.pop(lease.lease_id, None)

    def end_stray(self, lease: Lease, reason: EndReason, *, revision: int, now: float) -> None:
        """Ends a live lease of an own engine that is none of its records."""
        ended = as_ended(lease, reason, reads=lease.reads)
        self._ended.add(ended, now, revision=revision)
        self._change(lease.lease_id, ended)

    def drop_engine(self, engine_id: str) -> list[Record]:
        """Forgets an engine's live leases; ends and writes nothing."""
        shelf = self._shelves.get(engine_id)
        dropped = list(shelf.records.values()) if shelf else []
        for record in dropped:
            self._remove(record)
            self._changes.pop(record.lease_id, None)
        return dropped

    def drop_end(self, lease_id: str) -> None:
        """Forgets that a lease ended; writes nothing."""
        self._changes.pop(lease_id, None)
        self._ended.drop(lease_id)

    # -- What is to be written ---------------------------------------------------------------

    def note(self, lease_id: str) -> None:
        """Notes that a lease is to be written again, as it is."""
        record, ended = self._records.get(lease_id), self._ended.find(lease_id)
        if record is not None:
            self._note(record)
        elif ended is not None:
            self._change(lease_id, ended)

    @property
    def changes(self) -> int:
        """How many leases are to be written."""
        return len(self._changes)

    def engine_of(self, lease_id: str) -> str | None:
        """The engine of a lease, live or ended; None if it is not known."""
        record = self._records.get(lease_id)
        lease = record.lease if record else self._ended.find(lease_id)
        return lease.engine_id if lease else None

    def is_noted(self, lease_id: str) -> bool:
        """Whether a change of that lease was not taken yet."""
        return lease_id in self._changes

    def take_changes(self) -> dict[str, Lease | None]:
        """The latest states of leases that changed since the last call; None of forgotten ones."""
        taken, self._changes = self._changes, {}
        return taken

    def revision(self, lease_id: str) -> int:
        """Store revision of a lease, live or ended; 0 if it is not written."""
        record = self._records.get(lease_id)
        return record.revision if record else self._ended.revision(lease_id)

    def set_revision(self, lease_id: str, revision: int) -> None:
        """Notes the store revision of a lease."""
        record = self._records.get(lease_id)
        if record is not None:
            record.revision = revision
        else:
            self._ended.set_revision(lease_id, revision)

    # -- Readers -----------------------------------------------------------------------------

    def live(self) -> Iterable[Record]:
        """Every live lease."""
        return self._records.values()

    def ended(self) -> Iterable[Lease]:
        """Every ended lease that is remembered."""
        return self._ended

    @property
    def ends(self) -> Mapping[EndReason, int]:
        """How many leases have ended for each reason, since this process began."""
        return self._ended.counts

    # -- Steps -------------------------------------------------------------------------------

    def _add(self, lease: Lease, kind: Kind, *, ttl: float, now: float, revision: int) -> Record:
        record = Record(
            lease=lease,
            ttl=ttl,
            renewed_at=now,
            deadline=now + ttl + self._config.grace,
            used_at=now,
            reads=lease.reads,
            kind=kind,
            revision=revision,
        )
        self._records[lease.lease_id] = record
        shelf = self._shelves.get(lease.engine_id)
        if shelf is None:
            shelf = Shelf(renew_interval=self._config.renew_interval)
            self._shelves[lease.engine_id] = shelf
        shelf.add(record)
        self._deadlines.add(record)
        return record

    def _remove(self, record: Record) -> None:
        del self._records[record.lease_id]
        shelf = self._shelves[record.lease.engine_id]
        shelf.remove(record)
        if not shelf.records:
            del self._shelves[record.lease.engine_id]
        record.deadline = None
        self._newest.leave(record.lease.session_key, record.lease_id)

    def _supersede(self, record: Record) -> None:
        older = self._newest.enter(record.lease.session_key, record)
        # Another replica's lease is released by its own home, which sees this one.
        if isinstance(older, Record):
            self.release(older, EndReason.SUPERSEDED)

    def _begin_release(self, record: Record, reason: EndReason) -> None:
        shelf = self._shelves[record.lease.engine_id]
        shelf.kept_blocks -= record.lease.blocks
        record.lease = replace(
            record.lease, state=LeaseState.RELEASING, release_reason=reason, reads=record.reads
        )
        shelf.tell(record)
        self._newest.leave(record.lease.session_key, record.lease_id)

    def _note(self, record: Record) -> None:
        if record.lease.reads != record.reads:
            record.lease = replace(record.lease, reads=record.reads)
        self._change(record.lease_id, record.lease)

    def _change(self, lease_id: str, lease: Lease | None) -> None:
        self._changes.pop(lease_id, None)
        self._changes[lease_id] = lease
