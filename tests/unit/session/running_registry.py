"""A registry beside its lease manager and one engine, for tests."""

from typing import Any

from kvplane_services.lease.model import EndReason, Lease
from kvplane_services.lease.reports import EngineReport
from kvplane_services.session.model import Session
from tests.support.state_plane import StatePlane
from tests.support.state_values import engine_of, held, key_of, retention_of


class Running:
    """A running plane with one engine."""

    def __init__(self, plane: StatePlane) -> None:
        self.plane = plane
        self.engine = engine_of()

    async def start(self) -> None:
        self.engine = await self.plane.register(self.engine, ttl=300.0)
        await self.turn("first-report", "nobody")
        await self.end("first-report", EndReason.RECLAIMED)

    async def turn(self, retention_id: str, session_id: str = "s", **changes: Any) -> Lease:
        """A turn leaves a retention; the registry hears of its lease."""
        retention = retention_of(retention_id, session_id, **changes)
        answer = await self.plane.report(self.engine, held(retention))
        await self.plane.settle()
        names = {each.retention_id: each.lease for each in answer.directives}
        return self.plane.manager.get(names[retention_id])

    async def end(self, retention_id: str, reason: EndReason) -> None:
        await self.plane.report(self.engine, EngineReport(ended=((retention_id, reason),)))
        await self.plane.settle()

    async def worths(self) -> dict[str, float]:
        """What the engine is told, by retention, when all are renewed next."""
        await self.plane.clock.advance(11)
        answer = await self.plane.report(self.engine, held())
        await self.plane.settle()
        return {each.retention_id: each.worth for each in answer.directives if each.renew}

    def session(self, session_id: str = "s") -> Session:
        return self.plane.registry.get(key_of(session_id))
