"""Follows the tables of leases and of claims, and brings this replica in line with them."""

from kvplane_services.clock import Clock
from kvplane_services.engine.ports import Homes
from kvplane_services.lease.awaited import ReportingEngines
from kvplane_services.lease.away_claims import AwayClaims
from kvplane_services.lease.claim_notes import ClaimNotes
from kvplane_services.lease.elsewhere import ElsewhereLeases
from kvplane_services.lease.ledger import Ledger
from kvplane_services.lease.merging import Merger
from kvplane_services.lease.model import ClaimNote, EndReason, Lease, LeaseState
from kvplane_services.lease.newest import Newest
from kvplane_services.lease.ports import Engines
from kvplane_services.lease.publication import Publication
from kvplane_services.lease.record import Record
from kvplane_services.lease.takeover import Takeover
from kvplane_services.lease.tokens import TokenIssuer
from kvplane_services.lease.valuation import Valuation
from kvplane_services.store.feeds import TableFeed
from kvplane_services.store.model import Event, Removed, Reset, Synced, Upserted, Versioned
from kvplane_services.store.ports import Table


class Following:
    """Takes in what others write.

    Of leases of other replicas' engines it keeps what the table shows, and lets an own lease be
    superseded by one of them that is newer. Of leases of own engines it takes in what others may
    do to them: releases, and what a home before wrote last.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        elsewhere: ElsewhereLeases,
        newest: Newest,
        away: AwayClaims,
        notes: ClaimNotes,
        merger: Merger,
        takeover: Takeover,
        publication: Publication,
        reporting: ReportingEngines,
        issuer: TokenIssuer,
        valuation: Valuation,
        table: Table[Lease],
        engines: Engines,
        homes: Homes,
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._elsewhere = elsewhere
        self._newest = newest
        self._away = away
        self._notes = notes
        self._merger = merger
        self._takeover = takeover
        self._publication = publication
        self._reporting = reporting
        self._issuer = issuer
        self._valuation = valuation
        self._table = table
        self._engines = engines
        self._homes = homes
        self._clock = clock
        # Ids not seen again since the feed started over; None while it has not.
        self._unseen: set[str] | None = None

    async def follow_leases(self) -> None:
        """Follows the leases until cancelled."""
        async for event in TableFeed(table=self._table, clock=self._clock)():
            self.take_lease(event)
            self._publication.wake()

    async def follow_claims(self) -> None:
        """Follows the claims until cancelled."""
        async for event in self._notes.feed()():
            self.take_claim(event)

    async def look_again(self) -> None:
        """Looks up what the table has of leases that are in doubt, until cancelled."""
        while True:
            lease_id = await self._takeover.unsure()
            found = await self._table.get(lease_id)
            if self._ledger.find(lease_id) is not None:
                continue
            if found is None:
                self._elsewhere.vanish(lease_id, self._clock.now())
            elif self._homes.is_home(found.value.engine_id):
                self._take_own(found)
            else:
                self._take_other(found.value, found.revision)

    def take_lease(self, event: Event[Lease]) -> None:
        """Takes in an event of the leases."""
        match event:
            case Upserted(key=key, value=lease, revision=revision):
                if self._unseen is not None:
                    self._unseen.discard(key)
                self._issuer.note(lease.fencing_token)
                if self._homes.is_home(lease.engine_id):
                    self._take_own(Versioned(key, lease, revision))
                else:
                    self._take_other(lease, revision)
            case Removed(key=key):
                self._vanish(key)
            case Reset():
                self._unseen = {
                    *self._elsewhere.ids(),
                    *(record.lease_id for record in self._ledger.live()),
                }
            case Synced():
                unseen, self._unseen = self._unseen or (), None
                for lease_id in unseen:
                    self._vanish(lease_id)

    def take_claim(self, event: Event[ClaimNote]) -> None:
        """Takes in an event of the claims."""
        for lease_id in self._notes.apply(event):
            record = self._ledger.find(lease_id)
            if record is not None:
                record.used_at = self._clock.now()
        if isinstance(event, Upserted):
            self._heed(event.value, self._notes.lease_of(event.key))

    def sweep(self, now: float) -> None:
        """Forgets what vanished long ago, and claims that ran out."""
        for lease_id in self._elsewhere.forget_vanished(now):
            self._away.forget(lease_id)
        self._away.sweep(now)

    # -- Steps -------------------------------------------------------------------------------

    def _heed(self, note: ClaimNote, lease_id: str) -> None:
        record = self._ledger.find(lease_id)
        if record is None or record.fencing_token != note.fencing_token:
            return
        if note.final:
            self._valuation.finished(record)
        else:
            self._valuation.wanted(record)

    def _take_own(self, found: Versioned[Lease]) -> None:
        record = self._ledger.find(found.key)
        if record is not None:
            if found.revision > record.revision:
                self._merge(found)
        elif found.value.state is LeaseState.ENDED:
            if not self._ledger.knows(found.key):
                self._elsewhere.put(found.value, found.revision)
        elif not self._ledger.knows(found.key):
            self._take_up_late(found)

    def _merge(self, found: Versioned[Lease]) -> None:
        waits = self._publication.waits(found.key)
        if self._merger.merge(found.key, found, rewrite=waits) and not waits:
            self._ledger.note(found.key)

    def _take_up_late(self, found: Versioned[Lease]) -> None:
        """Takes a live lease up that was written for an own engine, and is not known."""
        lease = found.value
        engine = self._engines.find(lease.engine_id)
        if engine is not None and lease.engine_epoch < engine.epoch:
            self._takeover.fence(lease, found.revision)
            return
        self._takeover.take_up(lease, found.revision)
        # If the engine's full report came before, it is not clear whether it holds this.
        self._reporting.of(lease.engine_id).complete = 0

    def _take_other(self, lease: Lease, revision: int) -> None:
        self._elsewhere.put(lease, revision)
        if lease.state is LeaseState.ENDED:
            self._away.forget(lease.lease_id)
        if lease.state is not LeaseState.ACTIVE:
            return
        older = self._newest.enter(lease.session_key, lease)
        if isinstance(older, Record):
            self._ledger.release(older, EndReason.SUPERSEDED)

    def _vanish(self, lease_id: str) -> None:
        record = self._ledger.find(lease_id)
        if record is None:
            self._elsewhere.vanish(lease_id, self._clock.now())
        elif record.revision:
            # Not an end: the store lost it. It is written again, once its home is clear.
            record.revision = 0
            self._publication.hold_back(record.lease.engine_id, lease_id)
