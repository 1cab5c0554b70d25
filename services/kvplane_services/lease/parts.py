"""Puts the parts of the lease manager together."""

import asyncio
from dataclasses import dataclass

from kvplane_services.clock import Clock
from kvplane_services.engine.ports import Homes
from kvplane_services.lease.awaited import ReportingEngines
from kvplane_services.lease.away_claims import AwayClaims
from kvplane_services.lease.claim_desk import ClaimDesk
from kvplane_services.lease.claim_notes import ClaimNotes
from kvplane_services.lease.config import LeaseConfig
from kvplane_services.lease.consuming import Consuming
from kvplane_services.lease.directives import Directives
from kvplane_services.lease.elsewhere import ElsewhereLeases
from kvplane_services.lease.fixed_grants import FixedGrants
from kvplane_services.lease.following import Following
from kvplane_services.lease.granting import Granting
from kvplane_services.lease.holders import Holders
from kvplane_services.lease.ledger import Ledger
from kvplane_services.lease.merging import Merger
from kvplane_services.lease.model import ClaimNote, Lease
from kvplane_services.lease.newest import Newest
from kvplane_services.lease.ports import Engines
from kvplane_services.lease.publication import Publication
from kvplane_services.lease.reconciler import Reconciler
from kvplane_services.lease.releasing import Releasing
from kvplane_services.lease.takeover import Takeover
from kvplane_services.lease.tokens import TokenIssuer
from kvplane_services.lease.upkeep import Upkeep
from kvplane_services.lease.valuation import Valuation
from kvplane_services.store.ports import Sequence, Store, Table


@dataclass(frozen=True, slots=True)
class LeaseParts:
    """What the lease manager is made of."""

    ledger: Ledger
    elsewhere: ElsewhereLeases
    notes: ClaimNotes
    away: AwayClaims
    holders: Holders
    desk: ClaimDesk
    publication: Publication
    reporting: ReportingEngines
    reconciler: Reconciler
    takeover: Takeover
    releasing: Releasing
    fixed: FixedGrants
    consuming: Consuming
    upkeep: Upkeep

    @classmethod
    def of(
        cls,
        *,
        table: Table[Lease],
        claims: Table[ClaimNote],
        tokens: Sequence,
        store: Store,
        homes: Homes,
        engines: Engines,
        clock: Clock,
        config: LeaseConfig,
    ) -> "LeaseParts":
        """Makes all parts; see `LeaseManager` for what they are given."""
        newest = Newest()
        valuation = Valuation(config=config)
        ledger = Ledger(config=config, newest=newest, valuation=valuation)
        # Whoever was to renew a lease that vanished has given it up by then.
        elsewhere = ElsewhereLeases(newest=newest, grace=config.ttl + config.grace)
        notes = ClaimNotes(
            table=claims, store=store, replica=homes.replica, ttl=config.ttl, clock=clock
        )
        away = AwayClaims(notes=notes)
        holders = Holders(notes=notes)
        issuer = TokenIssuer(tokens=tokens)
        merger = Merger(ledger=ledger, clock=clock)
        reporting = ReportingEngines()
        publication = Publication(
            ledger=ledger,
            merger=merger,
            table=table,
            store=store,
            homes=homes,
            clock=clock,
            config=config,
        )
        takeover = Takeover(
            ledger=ledger,
            elsewhere=elsewhere,
            newest=newest,
            away=away,
            publication=publication,
            reporting=reporting,
            table=table,
            homes=homes,
            clock=clock,
            config=config,
        )
        reconciler = Reconciler(
            ledger=ledger,
            reporting=reporting,
            granting=Granting(
                ledger=ledger,
                elsewhere=elsewhere,
                issuer=issuer,
                store=store,
                clock=clock,
                config=config,
            ),
            directives=Directives(
                ledger=ledger, holders=holders, valuation=valuation, config=config
            ),
            valuation=valuation,
            engines=engines,
            homes=homes,
            clock=clock,
            config=config,
        )
        following = Following(
            ledger=ledger,
            elsewhere=elsewhere,
            newest=newest,
            away=away,
            notes=notes,
            merger=merger,
            takeover=takeover,
            publication=publication,
            reporting=reporting,
            issuer=issuer,
            valuation=valuation,
            table=table,
            engines=engines,
            homes=homes,
            clock=clock,
        )
        return cls(
            ledger=ledger,
            elsewhere=elsewhere,
            notes=notes,
            away=away,
            holders=holders,
            desk=ClaimDesk(
                ledger=ledger,
                elsewhere=elsewhere,
                away=away,
                valuation=valuation,
                newest_token=lambda: issuer.highest,
                clock=clock,
                config=config,
            ),
            publication=publication,
            reporting=reporting,
            reconciler=reconciler,
            takeover=takeover,
            releasing=Releasing(
                ledger=ledger,
                elsewhere=elsewhere,
                publication=publication,
                table=table,
                store=store,
                homes=homes,
            ),
            fixed=FixedGrants(
                ledger=ledger,
                elsewhere=elsewhere,
                publication=publication,
                issuer=issuer,
                table=table,
                engines=engines,
                homes=homes,
                clock=clock,
                config=config,
            ),
            consuming=Consuming(
                ledger=ledger, elsewhere=elsewhere, table=table, homes=homes, clock=clock
            ),
            upkeep=Upkeep(
                ledger=ledger,
                reconciler=reconciler,
                reporting=reporting,
                following=following,
                publication=publication,
                engines=engines,
                store=store,
                clock=clock,
                config=config,
            ),
        )

    async def run(self) -> None:
        """Runs what runs in the background, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.upkeep.run())
            tasks.create_task(self.publication.run())
            tasks.create_task(self.notes.run())
