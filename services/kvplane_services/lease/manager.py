"""The lease manager: joins what engines hold with what holders want kept.

Engines report retentions; each gets a lease. Holders claim leases. On every heartbeat the
manager answers, per lease, whether the engine is to hold the blocks for longer or to give them
up. It asks nothing else of an engine, and an engine that hears nothing frees blocks by itself.

Promised:
- A renewal never shortens a lease, and a lease is called expired here only after its engine's
  own deadline has passed, by a grace.
- Every grant has a larger fencing token than all before it; another token than the live one,
  and another epoch than the current one, are refused.
- An ended lease says why, once, and for a while afterwards.

Not promised:
- That blocks stay. The engine may break a lease at any moment; it says so on its next heartbeat.
- That a claim made in a lease's last moments reaches the engine in time: it does with the next
  heartbeat.
"""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator
from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass, replace

from kvplane_services.clock import Clock
from kvplane_services.engine.model import ConnectorKind, Engine
from kvplane_services.errors import InvalidRequest, LeaseFenced, NotFound
from kvplane_services.lease.claim_desk import ClaimDesk, ClaimResult
from kvplane_services.lease.config import LeaseConfig
from kvplane_services.lease.fixed_grants import FixedGrants
from kvplane_services.lease.grants import check_retention_id, lease_id_of
from kvplane_services.lease.ledger import Ledger, Record
from kvplane_services.lease.model import EndReason, Lease, RenewalOutcome
from kvplane_services.lease.ports import Engines, LeaseRenewal
from kvplane_services.lease.publication import Publication
from kvplane_services.lease.reconciler import Reconciler
from kvplane_services.lease.reports import EngineReport, ReportAnswer
from kvplane_services.lease.tokens import TokenIssuer
from kvplane_services.lease.upkeep import Upkeep
from kvplane_services.session.model import SessionKey
from kvplane_services.store.feeds import TableFeed
from kvplane_services.store.paging import Page, PageRequest
from kvplane_services.store.ports import Event, Feed, Sequence, Table


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease as granted, and for how long, in seconds."""

    lease: Lease
    ttl: float


class LeaseManager:
    """Grants, renews, supersedes and ends leases. Implements `LeaseControl`.

    Args:
        table: Where leases are published.
        tokens: Fencing tokens; they only grow, also over restarts of the plane.
        engines: Which engines are registered, and with which epoch.
        clock: Time.
        config: Durations and bounds.

    """

    def __init__(
        self,
        *,
        table: Table[Lease],
        tokens: Sequence,
        engines: Engines,
        clock: Clock,
        config: LeaseConfig | None = None,
    ) -> None:
        self._table = table
        self._engines = engines
        self._clock = clock
        self._config = config or LeaseConfig()
        self._ledger = Ledger(
            grace=self._config.grace,
            remember_ended=self._config.remember_ended,
            max_ended=self._config.max_ended,
        )
        self._publication = Publication(ledger=self._ledger, table=table)
        self._issuer = TokenIssuer(tokens=tokens)
        self._reconciler = Reconciler(
            ledger=self._ledger, issuer=self._issuer, clock=clock, config=self._config
        )
        self._desk = ClaimDesk(ledger=self._ledger, config=self._config)
        self._fixed = FixedGrants(
            ledger=self._ledger,
            issuer=self._issuer,
            engines=engines,
            clock=clock,
            config=self._config,
        )
        self._upkeep = Upkeep(
            ledger=self._ledger,
            reconciler=self._reconciler,
            publication=self._publication,
            engines=engines,
            clock=clock,
            config=self._config,
        )
        # Tokens are drawn and grants entered by one task at a time, or a grant could get a
        # smaller token than the one entered before it.
        self._granting = asyncio.Lock()

    @property
    def config(self) -> LeaseConfig:
        """Durations and bounds."""
        return self._config

    # -- Engines -----------------------------------------------------------------------------

    async def report(self, engine: Engine, report: EngineReport) -> ReportAnswer:
        """Takes in what an engine reports and tells it what to do with its retentions.

        The caller has checked that the report carries the engine's current epoch. A retention
        that no lease can be granted on is to be released: what a request carried must not
        break its engine's stream.

        Raises:
            InvalidRequest: A retention is not named. Nothing of the report is taken in.
            Unavailable: The store cannot be reached; the engine reports again, in full.

        """
        for index, retention in enumerate(report.retentions):
            check_retention_id(retention.retention_id, field=f"retentions[{index}]")
        if engine.build.connector is ConnectorKind.STOCK:
            return ReportAnswer()
        async with self._granting:
            current = self._engines.find(engine.engine_id)
            if current is None or current.epoch != engine.epoch:
                # It was replaced while its report waited; its next heartbeat says so.
                return ReportAnswer()
            answer = await self._reconciler.take(engine, report)
        await self._publication.publish()
        return answer

    async def observe(self, engine: Engine) -> None:
        """See `Upkeep.observe`. Raises Unavailable."""
        self._upkeep.observe(engine)
        await self._publication.publish()

    async def observe_gone(self, engine_id: str) -> None:
        """See `Upkeep.observe_gone`. Raises Unavailable."""
        self._upkeep.observe_gone(engine_id)
        await self._publication.publish()

    # -- Holders -----------------------------------------------------------------------------

    def claim(self, holder: str, renewals: AbstractSequence[LeaseRenewal]) -> list[ClaimResult]:
        """See `ClaimDesk.claim`."""
        return self._desk.claim(holder, renewals, self._clock.now())

    async def renew(
        self, holder: str, renewals: AbstractSequence[LeaseRenewal]
    ) -> AbstractSequence[RenewalOutcome]:
        """See `LeaseControl.renew`."""
        return [result.outcome for result in self.claim(holder, renewals)]

    async def release(self, lease: str, fencing_token: int) -> None:
        """See `LeaseControl.release`. Raises InvalidRequest if `lease` is no name of a lease."""
        record = self._ledger.find(_required_id(lease))
        if record is None:
            return
        if record.lease.fencing_token != fencing_token:
            raise LeaseFenced(
                f"{lease} has another fencing token than {fencing_token}: read it again",
                lease=lease,
            )
        self._ledger.release(record, EndReason.RELEASED)
        await self._publication.publish()

    async def grant(self, lease: Lease, *, ttl: float, request_id: str = "") -> Grant:
        """Grants a lease on a retention of an engine that holds blocks for a fixed time.

        Args:
            lease: What is retained; output-only fields are ignored.
            ttl: How long the engine holds the blocks from now on, in seconds; clamped.
            request_id: Makes a retry return the first answer.

        Raises:
            InvalidRequest: Something is missing or malformed.
            NotFound: The engine is not registered.
            EpochStale: The engine restarted since.
            FailedPrecondition: The engine reports its own retentions.
            Unavailable: The store cannot be reached.

        """
        async with self._granting:
            record, granted = await self._fixed.grant(lease, ttl=ttl, request_id=request_id)
        await self._publication.publish()
        return Grant(self._view(record), granted)

    # -- Readers -----------------------------------------------------------------------------

    def get(self, name: str) -> Lease:
        """The lease; an ended one is found for a while. Raises InvalidRequest, NotFound."""
        lease_id = _required_id(name)
        record = self._ledger.find(lease_id)
        if record is not None:
            return self._view(record)
        ended = self._ledger.find_ended(lease_id)
        if ended is not None:
            return ended
        raise NotFound(f"there is no {name}: it ended long ago or never was", lease=name)

    async def list(
        self,
        page: PageRequest,
        *,
        engine_id: str = "",
        session_key: SessionKey | None = None,
        include_ended: bool = False,
    ) -> Page[Lease]:
        """Leases by name. Raises InvalidRequest, Unavailable."""
        revision = await self._table.revision()
        leases = [record.lease for record in self._ledger.live()]
        if include_ended:
            leases.extend(self._ledger.ended())
        session = session_key.name if session_key else ""
        return page.take(
            (
                lease
                for lease in leases
                if engine_id in ("", lease.engine_id) and session_key in (None, lease.session_key)
            ),
            key=lambda lease: lease.lease_id,
            filters=("leases", engine_id, session, str(include_ended)),
            revision=revision,
        ).map(self._shown)

    def feed(self) -> Feed[Lease]:
        """All leases by id, then every grant, change of state or handle, and end.

        Renewals are not events. An end is an Upserted lease in state ENDED, with its reason;
        Removed follows once it is forgotten. Leases that ended lately are part of the full state.
        """
        return TableFeed(table=self._table, clock=self._clock)

    def watch(self, *, after: int = 0) -> AsyncIterator[Event[Lease]]:
        """See `Table.watch`; the events are those of `feed`."""
        return self._table.watch(after=after)

    # -- Upkeep ------------------------------------------------------------------------------

    async def sweep(self) -> None:
        """See `Upkeep.sweep`. Raises Unavailable."""
        self._upkeep.sweep()
        await self._publication.publish()

    async def run(self) -> None:
        """See `Upkeep.run`."""
        await self._upkeep.run()

    # -- Steps -------------------------------------------------------------------------------

    def _shown(self, lease: Lease) -> Lease:
        record = self._ledger.find(lease.lease_id)
        return self._view(record) if record else lease

    def _view(self, record: Record) -> Lease:
        now = self._clock.now()
        left = dt.timedelta(seconds=self._ledger.deadline(record) - now)
        return replace(
            record.lease,
            claims=record.claims.standing(now),
            ttl=record.ttl,
            expire_time=self._clock.wall() + left,
        )


def _required_id(name: str) -> str:
    lease_id = lease_id_of(name)
    if lease_id is None:
        raise InvalidRequest(f"{name!r} is not of the form leases/{{lease}}", field="name")
    return lease_id
