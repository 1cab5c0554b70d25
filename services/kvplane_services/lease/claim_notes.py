"""Claims that replicas tell each other of: made at one, about leases whose home is another.

A replica notes that its holders claim a lease when the first of them does, and takes the note back
when the last one gives up. The lease's home counts a note as a claim for as long as it is there;
all notes of a replica hang on an anchor of its own, so that they go when it does.

A note that cannot be written is written as soon as the store is back. Until then the lease is
still renewed for as long as idle ones are, so its holders need not be put off.

Not promised: that the names in a note are those of the present holders.
"""

import asyncio

from kvplane_services.clock import Clock
from kvplane_services.lease.model import Claim, ClaimNote
from kvplane_services.store.feeds import TableFeed
from kvplane_services.store.journal import Journal, Place
from kvplane_services.store.model import Event, Removed, Reset, Synced, Upserted
from kvplane_services.store.ports import Store, Table
from kvplane_services.store.write_behind import WriteBehind


class ClaimNotes:
    """The notes of this replica, and those of the others.

    Args:
        table: Where notes are written.
        store: The table's.
        replica: Id of this replica.
        ttl: How long this replica's notes outlive it, in seconds.
        clock: Time.

    """

    def __init__(
        self, *, table: Table[ClaimNote], store: Store, replica: str, ttl: float, clock: Clock
    ) -> None:
        self._table = table
        self._anchors = store.anchors
        self._replica = replica
        self._ttl = ttl
        self._clock = clock
        self._anchor = ""
        self._own: dict[str, ClaimNote] = {}
        self._others: dict[str, dict[str, ClaimNote]] = {}
        self._unseen: set[tuple[str, str]] = set()
        self._journal: Journal[ClaimNote] = Journal(
            table=table, place=lambda _key, _note: Place(self._anchor)
        )
        self._behind = WriteBehind(
            journal=self, reachable=lambda: store.reachable, clock=clock, what="claims"
        )

    def __len__(self) -> int:
        """Notes that are not written or taken back yet."""
        return len(self._journal)

    # -- Own ---------------------------------------------------------------------------------

    def note(self, lease_id: str, note: ClaimNote) -> None:
        """Tells the others that holders here claim a lease."""
        self._own[lease_id] = note
        self._journal.put(self._key(lease_id), note)
        self._behind.wake()

    def withdraw(self, lease_id: str) -> None:
        """Tells the others that nobody here claims a lease any more. Does nothing if none did."""
        if self._own.pop(lease_id, None) is not None:
            self._journal.delete(self._key(lease_id))
            self._behind.wake()

    # -- Others ------------------------------------------------------------------------------

    def claimed(self, lease_id: str, fencing_token: int) -> bool:
        """Whether holders at another replica claim a lease."""
        notes = self._others.get(lease_id)
        if not notes:
            return False
        return any(note.fencing_token == fencing_token and note.holders for note in notes.values())

    def claims(self, lease_id: str, fencing_token: int) -> tuple[Claim, ...]:
        """The claims at other replicas, by holder."""
        return tuple(
            Claim(holder, 0.0)
            for _, note in sorted(self._others.get(lease_id, {}).items())
            if note.fencing_token == fencing_token
            for holder in note.holders
        )

    def lease_of(self, key: str) -> str:
        """Id of the lease that the note of a key is about."""
        return _parts(key)[0]

    def apply(self, event: Event[ClaimNote]) -> list[str]:
        """Takes an event of the table in; returns ids of leases that lost a claim by it."""
        match event:
            case Upserted(key=key, value=note):
                lease_id, replica = _parts(key)
                self._unseen.discard((lease_id, replica))
                if replica != self._replica:
                    self._others.setdefault(lease_id, {})[replica] = note
            case Removed(key=key):
                return self._lose(*_parts(key))
            case Reset():
                self._unseen = {
                    (lease_id, replica)
                    for lease_id, notes in self._others.items()
                    for replica in notes
                }
            case Synced():
                unseen, self._unseen = self._unseen, set()
                return [lost for each in unseen for lost in self._lose(*each)]
        return []

    # -- Background --------------------------------------------------------------------------

    def feed(self) -> TableFeed[ClaimNote]:
        """The events to `apply`."""
        return TableFeed(table=self._table, clock=self._clock)

    async def flush(self) -> None:
        """Writes and takes back what waits for it. Raises Unavailable."""
        if len(self._journal) and not self._anchor:
            self._anchor = await self._anchors.open(self._ttl)
        await self._journal.flush()

    async def run(self) -> None:
        """Writes notes, again where the store lost them, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._behind.run())
            tasks.create_task(self._follow_losses())

    async def _follow_losses(self) -> None:
        async for anchor in self._anchors.lost():
            if anchor == self._anchor:
                self._anchor = ""
                for lease_id, note in self._own.items():
                    self._journal.put(self._key(lease_id), note)
                self._behind.wake()

    def _lose(self, lease_id: str, replica: str) -> list[str]:
        notes = self._others.get(lease_id)
        if notes is None or notes.pop(replica, None) is None:
            return []
        if not notes:
            del self._others[lease_id]
        return [lease_id]

    def _key(self, lease_id: str) -> str:
        return f"{lease_id}/{self._replica}"


def _parts(key: str) -> tuple[str, str]:
    lease_id, _, replica = key.partition("/")
    return lease_id, replica
