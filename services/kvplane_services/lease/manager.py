"""The lease manager: joins what engines hold with what holders want kept.

Engines report retentions; each gets a lease. Holders claim leases. On every heartbeat the
manager answers, per lease, whether the engine is to hold the blocks for longer or to give them
up. It asks nothing else of an engine, and an engine that hears nothing frees blocks by itself.

Of several replicas the one that an engine's heartbeats come to is its home, and decides on its
leases: renewals and deadlines are in its memory only, grants and ends are written. The others know
of a lease what is written, take claims on it, and may write that it is to be released.

Promised:
- A renewal never shortens a lease, and a lease is called expired here only after its engine's
  own deadline has passed, by a grace.
- Every retention gets a larger fencing token than all before it, and keeps it while its engine
  holds it, whatever becomes of leases; another token than the live one, and another epoch than the
  current one, are refused.
- Of a session's leases the one with the largest token stays, on whatever engine; each home
  releases its own older ones, once.
- An ended lease says why, once, and for a while afterwards.
- A store that is away ends nothing, and holds no renewal up. What it lost is put back.

Not promised:
- That blocks stay. The engine may break a lease at any moment; it says so on its next heartbeat.
- That a claim made in a lease's last moments reaches the engine in time: it does with the next
  heartbeat, and from another replica a moment later.
- That replicas agree at once. A lease granted at one is known at the others a moment later.
"""

import datetime as dt
from collections.abc import AsyncIterator, Mapping
from collections.abc import Sequence as AbstractSequence
from dataclasses import replace

from kvplane_services.clock import Clock
from kvplane_services.engine.model import ConnectorKind, Engine
from kvplane_services.engine.ports import Homes
from kvplane_services.errors import InvalidRequest, NotFound
from kvplane_services.lease.claim_desk import ClaimResult
from kvplane_services.lease.config import LeaseConfig
from kvplane_services.lease.fixed_grants import Grant
from kvplane_services.lease.grants import lease_id_of
from kvplane_services.lease.holders import shown
from kvplane_services.lease.model import ClaimNote, EndReason, Lease, RenewalOutcome
from kvplane_services.lease.parts import LeaseParts
from kvplane_services.lease.ports import Engines, LeaseRenewal
from kvplane_services.lease.record import Record
from kvplane_services.lease.reports import EngineReport, ReportAnswer
from kvplane_services.session.model import SessionKey
from kvplane_services.store.feeds import TableFeed
from kvplane_services.store.model import Event
from kvplane_services.store.paging import Page, PageRequest
from kvplane_services.store.ports import Feed, Sequence, Store, Table


class LeaseManager:
    """Grants, renews, supersedes and ends leases.

    Implements `LeaseControl` and `FixedLeaseControl`.

    Args:
        table: Where leases are published.
        claims: Where claims on other replicas' leases are published.
        tokens: Fencing tokens; they only grow, also over restarts of the plane.
        store: What the tables are in.
        homes: Which engines are this replica's.
        engines: Which engines are registered, and with which epoch.
        clock: Time.
        config: Durations and bounds.

    """

    def __init__(
        self,
        *,
        table: Table[Lease],
        claims: Table[ClaimNote],
        tokens: Sequence,
        store: Store,
        homes: Homes,
        engines: Engines,
        clock: Clock,
        config: LeaseConfig | None = None,
    ) -> None:
        self._table = table
        self._clock = clock
        self._config = config or LeaseConfig()
        self._parts = LeaseParts.of(
            table=table,
            claims=claims,
            tokens=tokens,
            store=store,
            homes=homes,
            engines=engines,
            clock=clock,
            config=self._config,
        )
        self._ledger = self._parts.ledger
        self._publication = self._parts.publication
        homes.listen(self._parts.takeover)

    @property
    def config(self) -> LeaseConfig:
        """Durations and bounds."""
        return self._config

    @property
    def unwritten(self) -> int:
        """Changes of leases and claims that the store has not taken yet."""
        return len(self._publication) + len(self._parts.notes)

    @property
    def ends(self) -> Mapping[EndReason, int]:
        """How many leases of this replica's engines have ended for each reason."""
        return self._ledger.ends

    # -- Engines -----------------------------------------------------------------------------

    async def report(self, engine: Engine, report: EngineReport) -> ReportAnswer:
        """Takes in what an engine reports and tells it what to do with its retentions.

        The caller has checked that the report carries the engine's current epoch. A retention
        that no lease can be granted on is to be released: what a request carried must not
        break its engine's stream. Nobody waits for the store for more than a moment: while it is
        away leases are renewed, and new retentions get theirs once it is back.

        """
        if engine.build.connector is ConnectorKind.STOCK:
            return ReportAnswer()
        parts = self._parts
        async with parts.reporting.of(engine.engine_id).lock:
            if not parts.reconciler.is_current(engine):
                # It was replaced, or moved, while its report waited; its next heartbeat says so.
                return ReportAnswer()
            await parts.takeover.catch_up(engine, report)
            answer = await parts.reconciler.take(engine, report)
        await self._publication.publish_soon()
        return answer

    async def observe(self, engine: Engine) -> None:
        """See `Upkeep.observe`. Raises Unavailable."""
        self._parts.upkeep.observe(engine)
        await self._publication.publish()

    async def observe_gone(self, engine_id: str) -> None:
        """See `Upkeep.observe_gone`. Raises Unavailable."""
        self._parts.upkeep.observe_gone(engine_id)
        await self._publication.publish()

    # -- Holders -----------------------------------------------------------------------------

    def claim(self, holder: str, renewals: AbstractSequence[LeaseRenewal]) -> list[ClaimResult]:
        """See `ClaimDesk.claim`."""
        return self._parts.desk.claim(holder, renewals, self._clock.now())

    async def renew(
        self, holder: str, renewals: AbstractSequence[LeaseRenewal]
    ) -> AbstractSequence[RenewalOutcome]:
        """See `LeaseControl.renew`."""
        return [result.outcome for result in self.claim(holder, renewals)]

    async def release(self, lease: str, fencing_token: int) -> None:
        """See `LeaseControl.release`. Raises InvalidRequest if `lease` is no name of a lease."""
        await self._parts.releasing.release(_required_id(lease), fencing_token)

    async def consume(self, lease: str, fencing_token: int) -> None:
        """See `FixedLeaseControl.consume`. Raises InvalidRequest if `lease` is no lease's name."""
        await self._parts.consuming.consume(_required_id(lease), fencing_token)

    async def lease_fixed(self, lease: Lease, *, ttl: float, request_id: str) -> None:
        """See `FixedLeaseControl.lease_fixed`."""
        await self.grant(lease, ttl=ttl, request_id=request_id)

    async def grant(self, lease: Lease, *, ttl: float, request_id: str = "") -> Grant:
        """Grants a lease on a retention of an engine that holds blocks for a fixed time.

        Args:
            lease: What is retained; output-only fields are ignored.
            ttl: How long the engine holds the blocks from now on, in seconds; clamped.
            request_id: Makes a retry at this replica return the first answer.

        Raises:
            InvalidRequest: Something is missing or malformed.
            NotFound: The engine is not registered.
            EpochStale: The engine restarted since.
            FailedPrecondition: The engine reports its own retentions.
            Unavailable: The store cannot be reached.

        """
        granted = await self._parts.fixed.grant(lease, ttl=ttl, request_id=request_id)
        return Grant(self._find(granted.lease.lease_id) or granted.lease, granted.ttl)

    # -- Readers -----------------------------------------------------------------------------

    def get(self, name: str) -> Lease:
        """The lease; an ended one is found for a while. Raises InvalidRequest, NotFound."""
        found = self._find(_required_id(name))
        if found is None:
            raise NotFound(f"there is no {name}: it ended long ago or never was", lease=name)
        return found

    async def list(
        self,
        page: PageRequest,
        *,
        engine_id: str = "",
        session_key: SessionKey | None = None,
        include_ended: bool = False,
    ) -> Page[Lease]:
        """Leases by name. Raises InvalidRequest."""
        revision = await self._table.revision()
        leases = {lease.lease_id: lease for lease in self._parts.elsewhere.live()}
        leases.update((record.lease_id, record.lease) for record in self._ledger.live())
        if include_ended:
            leases.update((lease.lease_id, lease) for lease in self._parts.elsewhere.ended())
            leases.update((lease.lease_id, lease) for lease in self._ledger.ended())
        session = session_key.name if session_key else ""
        return page.take(
            (
                lease
                for lease in leases.values()
                if engine_id in ("", lease.engine_id) and session_key in (None, lease.session_key)
            ),
            key=lambda lease: lease.lease_id,
            filters=("leases", engine_id, session, str(include_ended)),
            revision=revision,
        ).map(lambda lease: self._find(lease.lease_id) or lease)

    def feed(self) -> Feed[Lease]:
        """All leases by id, then every grant, change of state or handle, and end.

        Renewals are not events. An end is an Upserted lease in state ENDED, with its reason;
        Removed follows once it is forgotten. Removed without an end before says that the store
        has lost a lease, which is put back soon if it is not over. Leases that ended lately are
        part of the full state.
        """
        return TableFeed(table=self._table, clock=self._clock)

    def watch(self, *, after: int = 0) -> AsyncIterator[Event[Lease]]:
        """See `Table.watch`; the events are those of `feed`."""
        return self._table.watch(after=after)

    # -- Upkeep ------------------------------------------------------------------------------

    async def sweep(self) -> None:
        """See `Upkeep.sweep`. Raises Unavailable."""
        self._parts.upkeep.sweep()
        await self._publication.publish()

    async def run(self) -> None:
        """Does what is to be done without anybody's word, until cancelled."""
        await self._parts.run()

    # -- Steps -------------------------------------------------------------------------------

    def _find(self, lease_id: str) -> Lease | None:
        record = self._ledger.find(lease_id)
        if record is not None:
            return self._shown(record)
        ended = self._ledger.find_ended(lease_id)
        if ended is not None:
            return ended
        elsewhere = self._parts.elsewhere.find(lease_id)
        if elsewhere is not None:
            return self._shown_elsewhere(elsewhere)
        return self._parts.elsewhere.find_ended(lease_id)

    def _shown(self, record: Record) -> Lease:
        now = self._clock.now()
        left = dt.timedelta(seconds=self._ledger.deadline(record) - now)
        return replace(
            record.lease,
            reads=record.reads,
            claims=self._parts.holders.claims(record, now),
            ttl=record.ttl,
            expire_time=self._clock.wall() + left,
        )

    def _shown_elsewhere(self, lease: Lease) -> Lease:
        """A lease of another replica's engine, whose deadline that one alone knows."""
        here = self._parts.away.find(lease.lease_id)
        claims = (
            *(here.standing(self._clock.now()) if here else ()),
            *self._parts.notes.claims(lease.lease_id, lease.fencing_token),
        )
        return replace(
            lease,
            claims=shown(lease, claims),
            ttl=lease.ttl or self._config.ttl,
        )


def _required_id(name: str) -> str:
    lease_id = lease_id_of(name)
    if lease_id is None:
        raise InvalidRequest(f"{name!r} is not of the form leases/{{lease}}", field="name")
    return lease_id
