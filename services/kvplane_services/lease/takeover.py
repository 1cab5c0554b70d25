"""Takes the leases of an engine up when this replica becomes its home, and lets go of them."""

import asyncio

from kvplane_services.clock import Clock, within
from kvplane_services.engine.model import Engine
from kvplane_services.engine.ports import Homes
from kvplane_services.lease.awaited import ReportingEngines
from kvplane_services.lease.away_claims import AwayClaims
from kvplane_services.lease.claim_desk import seconds_left
from kvplane_services.lease.config import LeaseConfig
from kvplane_services.lease.elsewhere import ElsewhereLeases
from kvplane_services.lease.grants import lease_id_for, lease_id_of
from kvplane_services.lease.ledger import Ledger
from kvplane_services.lease.model import EndReason, Lease, LeaseState
from kvplane_services.lease.newest import Newest
from kvplane_services.lease.publication import Publication
from kvplane_services.lease.reports import EngineReport, RetentionReport
from kvplane_services.store.ports import Table

# What an engine's first frame here waits at most for what its home before wrote last, in seconds.
_MOMENT = 0.25


class Takeover:
    """See `HomeListener`.

    Args:
        ledger: Leases of own engines.
        elsewhere: Leases of other replicas' engines.
        newest: The newest lease of each session.
        away: Claims on leases of other replicas' engines.
        publication: Where leases are written.
        reporting: The engines that report here.
        table: Where leases are written, for its copy.
        homes: Which engines are this replica's.
        clock: Time.
        config: Durations and bounds.

    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        elsewhere: ElsewhereLeases,
        newest: Newest,
        away: AwayClaims,
        publication: Publication,
        reporting: ReportingEngines,
        table: Table[Lease],
        homes: Homes,
        clock: Clock,
        config: LeaseConfig,
    ) -> None:
        self._ledger = ledger
        self._elsewhere = elsewhere
        self._newest = newest
        self._away = away
        self._publication = publication
        self._reporting = reporting
        self._table = table
        self._homes = homes
        self._clock = clock
        self._config = config
        # Leases whose last change was not written when their engine went: what the table has of
        # them is something else.
        self._unsure: set[str] = set()
        self._some_unsure = asyncio.Event()

    # -- What homes tell ---------------------------------------------------------------------

    def home_taken(self, engine_id: str) -> None:
        """See `HomeListener.home_taken`."""
        self._let_go(engine_id)
        self._reporting.forget(engine_id)
        self._reporting.of(engine_id).taken = True
        for seen in self._elsewhere.take_engine(engine_id):
            self.take_up(seen.lease, seen.revision)
        self._publication.wake()

    def home_lost(self, engine_id: str) -> None:
        """See `HomeListener.home_lost`."""
        self._let_go(engine_id)
        self._reporting.forget(engine_id)

    def home_restored(self, engine_id: str) -> None:
        """See `HomeListener.home_restored`."""
        self._publication.restore_engine(engine_id)

    async def unsure(self) -> str:
        """Waits for a lease that may not be as it is believed to be here; returns its id."""
        while not self._unsure:
            self._some_unsure.clear()
            await self._some_unsure.wait()
        return self._unsure.pop()

    # -- What follows ------------------------------------------------------------------------

    def take_up(self, lease: Lease, revision: int) -> None:
        """Goes on with a live lease of an own engine, which a home before has granted.

        Its engine may have been told to hold the blocks for a TTL just now.
        """
        self._elsewhere.take(lease.lease_id)
        now = self._clock.now()
        other = self._ledger.retention(lease.engine_id, lease.retention_id)
        if other is not None:
            # Another grant took its place before it was seen here.
            self._newest.leave(lease.session_key, lease.lease_id)
            self._ledger.end_stray(lease, EndReason.FENCED, revision=revision, now=now)
            return
        ttl = seconds_left(lease, self._clock.wall()) if lease.ttl else self._config.ttl
        record = self._ledger.take_up(lease, revision=revision, ttl=ttl, now=now)
        # Where it was idle before, the policy goes on: else every move would keep it for longer.
        # Its last use is known to the home before alone; that it was granted then, to everybody.
        record.used_at = now - self._age(lease)
        record.claims = self._away.take(lease.lease_id)
        if not revision:
            self._ledger.note(lease.lease_id)

    def _age(self, lease: Lease) -> float:
        """Seconds since a lease was granted, by the time of day.

        Clocks of replicas may differ: it says what an idle lease is worth, and decides on no
        deadline. One that is claimed does not come to it.
        """
        if lease.create_time is None:
            return 0.0
        return max((self._clock.wall() - lease.create_time).total_seconds(), 0.0)

    def fence(self, lease: Lease, revision: int) -> None:
        """Ends a live lease of an own engine that it held under an earlier registration."""
        self._elsewhere.take(lease.lease_id)
        self._newest.leave(lease.session_key, lease.lease_id)
        self._ledger.end_stray(lease, EndReason.FENCED, revision=revision, now=self._clock.now())

    async def catch_up(self, engine: Engine, report: EngineReport) -> None:
        """Takes up what the table has of the retentions in an engine's first frames here.

        The home before may have written until it was replaced, which this replica sees a moment
        later. What it sees later still is put right by the engine's next full report.
        """
        known = self._reporting.of(engine.engine_id)
        if not known.taken:
            return
        try:
            guard = self._homes.guard(engine.engine_id)
            await within(self._table.reached(guard.revision), _MOMENT, clock=self._clock)
        except (KeyError, TimeoutError):
            pass
        for retention in report.retentions:
            if self._ledger.retention(engine.engine_id, retention.retention_id) is None:
                await self._look_up(engine, retention)
        if report.full:
            known.taken = False

    async def _look_up(self, engine: Engine, retention: RetentionReport) -> None:
        named = lease_id_of(retention.lease)
        first = lease_id_for(
            engine.engine_id, engine.epoch, retention.retention_id, taken=lambda _: False
        )
        for lease_id in (named, first):
            found = await self._table.get(lease_id) if lease_id else None
            if found is None or self._ledger.knows(found.key):
                continue
            lease = found.value
            held = (lease.engine_id, lease.retention_id) == (
                engine.engine_id,
                retention.retention_id,
            )
            if lease.state is LeaseState.ENDED or not held:
                self._elsewhere.put(lease, found.revision)
            elif not self._homes.is_home(engine.engine_id):
                return
            elif lease.engine_epoch < engine.epoch:
                self.fence(lease, found.revision)
            else:
                self.take_up(lease, found.revision)
                return

    def _let_go(self, engine_id: str) -> None:
        """Drops an engine's leases; from here on they are seen as the table shows them."""
        before = self._ledger.on_engine(engine_id)
        for record in before:
            if self._publication.waits(record.lease_id) or not record.revision:
                self._unsure.add(record.lease_id)
                self._some_unsure.set()
        # Ends that the store has not taken, and will not: they are none.
        ends = [
            lease.lease_id
            for lease in self._ledger.ended()
            if lease.engine_id == engine_id and self._publication.waits(lease.lease_id)
        ]
        dropped = self._ledger.drop_engine(engine_id)
        for lease_id in ends:
            self._ledger.drop_end(lease_id)
            self._unsure.add(lease_id)
            self._some_unsure.set()
        self._publication.forget_engine(
            engine_id, [*ends, *(record.lease_id for record in dropped)]
        )
        now = self._clock.now()
        for record in dropped:
            self._elsewhere.put(record.lease, record.revision)
            if record.lease.state is LeaseState.ACTIVE:
                self._newest.enter(record.lease.session_key, record.lease)
                if record.claims is not None:
                    self._away.enter(record.lease, record.claims, now)
