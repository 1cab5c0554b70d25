"""Puts the parts of the session registry together."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from kvplane_services.clock import Clock
from kvplane_services.lease.model import Lease
from kvplane_services.lease.ports import LeaseControl
from kvplane_services.session.book import SessionBook
from kvplane_services.session.changes import Changes
from kvplane_services.session.config import SessionConfig
from kvplane_services.session.feed import SessionEvents
from kvplane_services.session.follower import LeaseFollower
from kvplane_services.session.keeper import Keeper
from kvplane_services.session.record import PackedRecord, RecordCodec
from kvplane_services.session.record_follower import RecordFollower
from kvplane_services.session.saver import Saver
from kvplane_services.session.shares import Shares
from kvplane_services.session.upkeep import Upkeep
from kvplane_services.session.wishes import Wishes
from kvplane_services.store.feeds import TableFeed
from kvplane_services.store.members import Members
from kvplane_services.store.ports import Feed, Table


@dataclass(frozen=True, slots=True)
class SessionParts:
    """What the session registry is made of."""

    book: SessionBook
    wishes: Wishes
    saver: Saver
    keeper: Keeper
    changes: Changes
    records: RecordFollower
    follower: LeaseFollower
    events: SessionEvents
    upkeep: Upkeep

    @classmethod
    def of(
        cls,
        *,
        table: Table[PackedRecord],
        codec: RecordCodec,
        leases: Feed[Lease],
        control: LeaseControl,
        members: Members,
        reachable: Callable[[], bool],
        clock: Clock,
        config: SessionConfig,
    ) -> "SessionParts":
        """Makes all parts; see `SessionRegistry` for what they are given."""
        shares = Shares(members)
        wishes = Wishes()
        book = SessionBook(codec=codec, wishes=wishes, clock=clock, config=config)
        saver = Saver(
            table=table,
            reachable=reachable,
            book=book,
            codec=codec,
            shares=shares,
            clock=clock,
            config=config,
        )
        keeper = Keeper(
            control=control, book=book, wishes=wishes, shares=shares, clock=clock, config=config
        )
        changes = Changes(
            table=table,
            reachable=reachable,
            book=book,
            codec=codec,
            saver=saver,
            clock=clock,
            config=config,
        )
        records = RecordFollower(
            records=TableFeed(table=table, clock=clock),
            book=book,
            saver=saver,
            keeper=keeper,
            wishes=wishes,
            clock=clock,
        )
        follower = LeaseFollower(
            leases=leases, book=book, saver=saver, keeper=keeper, clock=clock, config=config
        )
        upkeep = Upkeep(
            book=book,
            saver=saver,
            keeper=keeper,
            follower=follower,
            changes=changes,
            wishes=wishes,
            shares=shares,
            clock=clock,
            config=config,
        )
        members.listen(upkeep.review)
        return cls(
            book=book,
            wishes=wishes,
            saver=saver,
            keeper=keeper,
            changes=changes,
            records=records,
            follower=follower,
            events=SessionEvents(table=table, book=book, codec=codec, clock=clock),
            upkeep=upkeep,
        )

    async def run(self) -> None:
        """Follows leases and other replicas, and does what sessions need, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.records.run())
            tasks.create_task(self.saver.run())
            tasks.create_task(self.keeper.run())
            tasks.create_task(self.upkeep.run())
            await self.records.loaded()
            tasks.create_task(self.follower.run())
