"""Brings what changed in the ledger before those who read and watch leases.

Every write is checked: it goes over what this replica wrote or took over only, and only while
this replica is the engine's home. Live leases hang on their engine's anchor; ended ones on one
that lapses by itself, so that nothing is left of a replica that died.
"""

import asyncio
import logging

from kvplane_services.clock import Clock, jittered
from kvplane_services.engine.ports import Homes
from kvplane_services.errors import Conflict, GuardFailed, TooLarge, Unavailable
from kvplane_services.lease.config import LeaseConfig
from kvplane_services.lease.lapsing import LapsingAnchor
from kvplane_services.lease.ledger import Ledger
from kvplane_services.lease.merging import Merger
from kvplane_services.lease.model import EndReason, Lease, LeaseState
from kvplane_services.store.commits import store_away
from kvplane_services.store.journal import Journal, Place
from kvplane_services.store.ports import Store, Table
from kvplane_services.store.write_behind import WriteBehind

_log = logging.getLogger(__name__)

# After how long a change is tried again that was refused while it was not clear why, in seconds.
_RETRY_REFUSED = 1.0
# What a caller waits who is told that a change is written, in seconds.
_PATIENCE = 2.0


class _LedgerRevisions:
    """Revisions of leases, kept where the leases are."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def get(self, key: str) -> int:
        return self._ledger.revision(key)

    def set(self, key: str, revision: int) -> None:
        self._ledger.set_revision(key, revision)


class Publication:
    """Writes the ledger's changes to a table, each once and in order.

    Args:
        ledger: The leases.
        merger: Goes on with what somebody else wrote.
        table: Where to.
        store: The table's.
        homes: Whose guards and anchors writes carry.
        clock: Time.
        config: Durations and bounds.

    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        merger: Merger,
        table: Table[Lease],
        store: Store,
        homes: Homes,
        clock: Clock,
        config: LeaseConfig,
    ) -> None:
        self._ledger = ledger
        self._merger = merger
        self._table = table
        self._store = store
        self._anchors = store.anchors
        self._homes = homes
        self._clock = clock
        self._ends = LapsingAnchor(anchors=store.anchors, keep=config.remember_ended, clock=clock)
        self._journal: Journal[Lease] = Journal(
            table=table,
            checked=True,
            revisions=_LedgerRevisions(ledger),
            place=self._place,
            on_refused=self._refused,
        )
        self._behind = WriteBehind(
            journal=self, reachable=lambda: store.reachable, clock=clock, what="leases"
        )
        # Somebody else wrote these.
        self._conflicts: list[str] = []
        # Refused because of their home, by engine: it has moved, or is being put back. The
        # listener of homes is about to be told which.
        self._held_back: dict[str, set[str]] = {}
        self._holding_back = asyncio.Event()

    def __len__(self) -> int:
        """Changes that are not written yet, but for those whose home is not clear."""
        return self._ledger.changes + len(self._journal) + len(self._conflicts)

    def waits(self, lease_id: str) -> bool:
        """Whether a change of a lease is not written yet."""
        return (
            lease_id in self._journal
            or lease_id in self._conflicts
            or self._ledger.is_noted(lease_id)
            or any(lease_id in held for held in self._held_back.values())
        )

    async def publish(self, *lease_ids: str) -> None:
        """Publishes every change so far, and waits for it.

        Args:
            lease_ids: Those whose changes must be written; all if there are none.

        Raises:
            Unavailable: They were not written in time. They will be later, unless another
                replica is the engine's home by then.

        """
        await self._behind.settle(_PATIENCE)
        late = any(map(self.waits, lease_ids)) if lease_ids else len(self)
        if late and not self._store.reachable:
            raise store_away()
        if late:
            raise Unavailable(
                "the plane's store has not taken the change yet: retry", retry_after=_RETRY_REFUSED
            )

    async def publish_soon(self) -> None:
        """Publishes every change so far, in a moment or in the background."""
        await self._behind.settle()

    def wake(self) -> None:
        """Has every change so far published in the background."""
        if len(self):
            self._behind.wake()

    def forget_engine(self, engine_id: str, lease_ids: list[str]) -> None:
        """Writes nothing more about an engine's leases: another replica does."""
        self._held_back.pop(engine_id, None)
        for lease_id in lease_ids:
            self._journal.forget(lease_id)

    def restore_engine(self, engine_id: str) -> None:
        """Writes all live leases of an engine again."""
        for lease_id in self._held_back.pop(engine_id, ()):
            self._ledger.note(lease_id)
        for record in self._ledger.on_engine(engine_id):
            self._ledger.note(record.lease_id)
        self.wake()

    def hold_back(self, engine_id: str, lease_id: str) -> None:
        """Notes that a lease is to be written again, once it is clear who is home."""
        self._held_back.setdefault(engine_id, set()).add(lease_id)
        self._holding_back.set()

    async def flush(self) -> None:
        """Writes everything noted so far. Raises Unavailable."""
        while len(self):
            self._note_changes()
            await self._ends.ready()
            await self._journal.flush()
            await self._merge_conflicts()

    async def run(self) -> None:
        """Publishes in the background, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._behind.run())
            tasks.create_task(self._retry_held_back())
            tasks.create_task(self._follow_losses())

    # -- Steps -------------------------------------------------------------------------------

    def _note_changes(self) -> None:
        for lease_id, lease in self._ledger.take_changes().items():
            if lease is None:
                self._journal.delete(lease_id)
            else:
                self._journal.put(lease_id, lease)

    def _place(self, _lease_id: str, lease: Lease | None) -> Place | None:
        if lease is None:
            return Place()
        if not self._homes.is_home(lease.engine_id):
            return None
        ended = lease.state is LeaseState.ENDED
        anchor = self._ends.name if ended else self._homes.anchor(lease.engine_id)
        return Place(anchor, self._homes.guard(lease.engine_id))

    def _refused(self, lease_id: str, error: Conflict) -> None:
        engine_id = self._ledger.engine_of(lease_id)
        if engine_id is None:
            # Forgotten meanwhile: whoever wrote it looks after it.
            self._ledger.set_revision(lease_id, 0)
        elif isinstance(error, GuardFailed):
            self.hold_back(engine_id, lease_id)
        elif isinstance(error, TooLarge):
            self._give_up(lease_id, error)
        else:
            self._conflicts.append(lease_id)

    def _give_up(self, lease_id: str, error: TooLarge) -> None:
        """Releases a lease that nobody can be told of: its blocks would be held in vain."""
        record = self._ledger.find(lease_id)
        if record is not None and record.release is None:
            _log.warning("%s is released, for it cannot be written: %s", record.lease.name, error)
            # Too large to be written as well; its end is not, which comes without a handle.
            self._ledger.release(record, EndReason.RELEASED)

    async def _merge_conflicts(self) -> None:
        while self._conflicts:
            lease_id = self._conflicts[-1]
            found = await self._table.get(lease_id, current=True)
            self._conflicts.pop()
            engine_id = self._ledger.engine_of(lease_id)
            if engine_id is None:
                continue
            before = self._ledger.revision(lease_id)
            wanted = self._merger.merge(lease_id, found, rewrite=True)
            if not wanted:
                continue
            if self._ledger.revision(lease_id) == before:
                # It was as expected, so something else is not: wait, or this goes round and round.
                self.hold_back(engine_id, lease_id)
            else:
                self._ledger.note(lease_id)

    async def _retry_held_back(self) -> None:
        while True:
            await self._holding_back.wait()
            self._holding_back.clear()
            await self._clock.sleep(jittered(_RETRY_REFUSED))
            held_back, self._held_back = self._held_back, {}
            for engine_id, lease_ids in held_back.items():
                if self._homes.is_home(engine_id):
                    for lease_id in lease_ids:
                        self._ledger.note(lease_id)
            self.wake()

    async def _follow_losses(self) -> None:
        async for anchor in self._anchors.lost():
            self._ends.lost(anchor)
