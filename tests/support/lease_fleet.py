"""Three replicas' lease managers on one store."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from kvplane_services.adapters.records import CLAIMS, LEASES
from kvplane_services.engine.model import Engine
from kvplane_services.lease.claim_desk import ClaimResult
from kvplane_services.lease.model import ClaimNote, Lease, LeaseState
from kvplane_services.lease.ports import LeaseRenewal
from kvplane_services.lease.reports import EngineReport, ReportAnswer
from kvplane_services.store.feeds import TableFeed
from kvplane_services.store.model import Removed, Synced, Upserted
from tests.support.state_plane import Replicas
from tests.support.state_values import engine_of, full, held, retention_of

# How long an engine may be silent in these tests.
TTL = 300.0


class LeaseFleet(Replicas):
    """Replicas, and what the tests do at each, by its number."""

    def __init__(self, count: int = 3, **configs: Any) -> None:
        super().__init__(count, **configs)
        self.leases = self.shared.memory.table(LEASES)
        self.claims = self.shared.memory.table(CLAIMS)

    async def register(self, at: int, engine: Engine | None = None) -> Engine:
        """Registers an engine, and lets the others see it."""
        registered = await self.planes[at].register(engine or engine_of(), ttl=TTL)
        await self.settle()
        return registered

    async def report(self, at: int, engine: Engine, report: EngineReport) -> ReportAnswer:
        """Sends a frame, and lets the others see what it did."""
        answer = await self.planes[at].report(engine, report)
        await self.settle()
        return answer

    async def held_lease(self, at: int, engine: Engine, retention_id: str = "r1") -> Lease:
        """Reports one retention, as the first frame of a stream, and returns its lease."""
        answer = await self.report(at, engine, full(retention_of(retention_id)))
        (directive,) = answer.directives
        return self.planes[at].manager.get(directive.lease)

    async def beat(self, at: int, engine: Engine, seconds: int, every: int = 1) -> list[Any]:
        """Sends empty frames for a while; returns what the engine is told."""
        told: list[Any] = []
        for _ in range(seconds // every):
            await self.advance(every)
            told.extend((await self.report(at, engine, held())).directives)
        return told

    def claim(self, at: int, lease: Lease, holder: str = "h", **fields: Any) -> ClaimResult:
        """Claims a lease, or drops the claim."""
        renewal = LeaseRenewal(lease.name, lease.fencing_token, **fields)
        (result,) = self.planes[at].manager.claim(holder, [renewal])
        return result

    def states(self, lease: Lease) -> list[LeaseState]:
        """The lease's state as each replica tells it."""
        return [plane.manager.get(lease.name).state for plane in self.planes]

    def homes(self, engine_id: str = "d0") -> list[int]:
        """Which replicas believe that they are the engine's home."""
        return [
            number for number, plane in enumerate(self.planes) if plane.homes.is_home(engine_id)
        ]

    async def stored(self, lease: Lease) -> Lease | None:
        """What the store holds of a lease."""
        found = await self.leases.get(lease.lease_id)
        return found.value if found else None

    async def noted(self) -> dict[str, ClaimNote]:
        """The claims that the store holds."""
        return {item.key: item.value for item in (await self.claims.list()).items}

    @asynccontextmanager
    async def recorded(self) -> AsyncIterator[list[Upserted[Lease] | Removed]]:
        """Every write of a lease from here on."""
        events: list[Upserted[Lease] | Removed] = []

        async def record() -> None:
            full_state = True
            async for event in TableFeed(table=self.leases, clock=self.clock)():
                match event:
                    case Upserted() | Removed():
                        if not full_state:
                            events.append(event)
                    case _:
                        full_state = not isinstance(event, Synced)

        recorder = asyncio.ensure_future(record())
        await self.settle()
        try:
            yield events
        finally:
            await self.settle()
            recorder.cancel()
            await asyncio.gather(recorder, return_exceptions=True)


def told(lease: Lease, **changes: Any) -> Any:
    """A retention as its engine reports it once it knows its lease."""
    return retention_of(
        lease.retention_id,
        lease.session_key.session_id,
        lease=lease.name,
        fencing_token=lease.fencing_token,
        **changes,
    )


def written(events: Sequence[Upserted[Lease] | Removed]) -> list[tuple[str, LeaseState]]:
    """Retention and state of each lease that was written."""
    return [
        (event.value.retention_id, event.value.state)
        for event in events
        if isinstance(event, Upserted)
    ]
