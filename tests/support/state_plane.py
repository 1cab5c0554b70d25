"""The plane's state on a fake clock: store, directory, lease manager and session registry.

`StatePlane` is one replica, with an embedded store unless told otherwise; `replicas` makes
several that share one.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from kvplane_services.adapters.memory import MemoryStore
from kvplane_services.adapters.records import CLAIMS, ENGINES, HOMES, LEASES, MEMBERS, SESSIONS
from kvplane_services.adapters.session_records import SessionCodec
from kvplane_services.engine.directory import EngineDirectory
from kvplane_services.engine.homes import EngineHomes
from kvplane_services.engine.model import Engine
from kvplane_services.engine.registration import DirectoryConfig
from kvplane_services.lease.config import LeaseConfig
from kvplane_services.lease.manager import LeaseManager
from kvplane_services.lease.model import Lease
from kvplane_services.lease.reports import Directive, EngineReport, ReportAnswer
from kvplane_services.session.config import SessionConfig
from kvplane_services.session.registry import SessionRegistry
from kvplane_services.session.shares import ROLE
from kvplane_services.store.members import Member, Members
from kvplane_services.store.model import Upserted
from kvplane_services.store.ports import Sequence
from tests.support.clock import FakeClock
from tests.support.cut_store import CutStore, SharedStore
from tests.support.state_values import PLANE_VERSION, engine_of


class StatePlane:
    """All of it in one process, as `kvplane up` wires it. Loops run only where a test runs them."""

    def __init__(
        self,
        *,
        clock: FakeClock | None = None,
        directory: DirectoryConfig | None = None,
        leases: LeaseConfig | None = None,
        sessions: SessionConfig | None = None,
        backlog: int = 4096,
        tokens: Sequence | None = None,
        store: CutStore | None = None,
        replica: str = "replica-0",
    ) -> None:
        self.clock = clock or FakeClock()
        self.store = store or MemoryStore(clock=self.clock, backlog=backlog)
        self.homes = EngineHomes(
            replica=replica,
            table=self.store.table(HOMES),
            anchors=self.store.anchors,
            clock=self.clock,
        )
        self.lease_table = self.store.table(LEASES)
        self.directory = EngineDirectory(
            table=self.store.table(ENGINES),
            epochs=self.store.sequence("epochs"),
            homes=self.homes,
            anchors=self.store.anchors,
            reachable=lambda: self.store.reachable,
            clock=self.clock,
            plane_version=PLANE_VERSION,
            config=directory,
        )
        self.manager = LeaseManager(
            table=self.lease_table,
            claims=self.store.table(CLAIMS),
            tokens=tokens or self.store.sequence("tokens"),
            store=self.store,
            homes=self.homes,
            engines=self.directory,
            clock=self.clock,
            config=leases,
        )
        self.members = Members(
            member_id=replica,
            member=Member((ROLE,)),
            table=self.store.table(MEMBERS),
            anchors=self.store.anchors,
            clock=self.clock,
        )
        self.registry = SessionRegistry(
            table=self.store.table(SESSIONS),
            codec=SessionCodec(),
            leases=self.manager.feed(),
            control=self.manager,
            members=self.members,
            reachable=lambda: self.store.reachable,
            clock=self.clock,
            config=sessions,
        )

    async def register(self, engine: Engine | None = None, **wishes: Any) -> Engine:
        """Registers an engine as EngineService does."""
        registration = await self.directory.register(engine or engine_of(), **wishes)
        await self.manager.observe(registration.engine)
        return registration.engine

    async def report(self, engine: Engine, report: EngineReport) -> ReportAnswer:
        """Heartbeats and reports as EngineService does."""
        await self.directory.heartbeat(engine.engine_id, engine.epoch)
        return await self.manager.report(engine, report)

    async def held_lease(self, engine: Engine, report: EngineReport) -> Lease:
        """Reports one new retention, and returns the lease that the engine is told of."""
        (directive,) = (await self.report(engine, report)).directives
        return self.manager.get(directive.lease)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs all loops."""
        async with asyncio.TaskGroup() as tasks:
            loops = [
                tasks.create_task(part.run())
                for part in (self.homes, self.directory, self.manager, self.members, self.registry)
            ]
            await self.settle()
            yield
            for loop in loops:
                loop.cancel()

    async def settle(self) -> None:
        """Lets every task that can go on do so."""
        await self.clock.advance(0)

    @asynccontextmanager
    async def recorded_leases(self) -> AsyncIterator[list[Upserted[Lease]]]:
        """Events of the leases from here on, initial state left out."""
        events: list[Upserted[Lease]] = []

        async def record() -> None:
            after = self.store.revision
            async for event in self.manager.watch(after=after):
                match event:
                    case Upserted():
                        events.append(event)

        recorder = asyncio.ensure_future(record())
        await self.settle()
        try:
            yield events
        finally:
            await self.settle()
            recorder.cancel()
            await asyncio.gather(recorder, return_exceptions=True)


class Replicas:
    """Several replicas on one store, which each can be cut from: `one.store.cut()`."""

    def __init__(self, count: int, **configs: Any) -> None:
        self.clock = FakeClock()
        self.shared = SharedStore(clock=self.clock)
        self.stores = [self.shared.replica() for _ in range(count)]
        self.planes = [
            StatePlane(clock=self.clock, store=store, replica=f"replica-{number}", **configs)
            for number, store in enumerate(self.stores)
        ]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs all loops of all replicas."""
        async with AsyncExitStack() as stack:
            for plane in self.planes:
                await stack.enter_async_context(plane.running())
            yield

    async def settle(self) -> None:
        """Lets every task that can go on do so."""
        for _ in range(5):
            await self.clock.advance(0)

    async def advance(self, seconds: float, step: float = 0.25) -> None:
        """Moves time in small steps, with which anchors lapse as well."""
        for _ in range(round(seconds / step)):
            await self.clock.advance(step)
            self.shared.lapse()
        await self.settle()


def by_retention(answer: ReportAnswer) -> dict[str, Directive]:
    """The directives of an answer, by retention."""
    return {directive.retention_id: directive for directive in answer.directives}
