"""A registry whose leases are elsewhere, scripted by a test."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from kvplane_services.adapters.records import SESSIONS
from kvplane_services.adapters.session_records import SessionCodec
from kvplane_services.errors import (
    Unavailable,
)
from kvplane_services.lease.model import EndReason, Lease, LeaseState, RenewalOutcome
from kvplane_services.lease.ports import LeaseRenewal
from kvplane_services.session.model import SessionState
from kvplane_services.session.registry import SessionRegistry
from kvplane_services.store.model import Event, Upserted
from tests.support.clock import FakeClock
from tests.support.state_plane import StatePlane
from tests.support.state_values import handle_of, key_of


class RemoteLeases:
    """A feed and a lease manager in another process, as a test scripts them."""

    def __init__(self) -> None:
        self.away = False
        self.claimed: list[tuple[str, LeaseRenewal]] = []
        self.released: list[tuple[str, int]] = []
        self._events: list[Event[Lease]] = []
        self._clock = FakeClock()

    def send(self, *events: Event[Lease]) -> None:
        self._events.extend(events)

    async def __call__(self) -> AsyncIterator[Event[Lease]]:
        while True:
            while self._events:
                yield self._events.pop(0)
            await self._clock.sleep(0)

    async def renew(
        self, holder: str, renewals: Sequence[LeaseRenewal]
    ) -> Sequence[RenewalOutcome]:
        self._check()
        self.claimed.extend((holder, renewal) for renewal in renewals)
        return [RenewalOutcome.RENEWED] * len(renewals)

    async def release(self, lease: str, fencing_token: int) -> None:
        self._check()
        self.released.append((lease, fencing_token))

    def _check(self) -> None:
        if self.away:
            raise Unavailable("the lease manager is away", retry_after=1.0)


def lease(token: int, session_id: str = "s", **changes: Any) -> Lease:
    values: dict[str, Any] = {
        "lease_id": f"l{token}",
        "session_key": key_of(session_id),
        "engine_id": "d0",
        "engine_epoch": 1,
        "retention_id": f"r{token}",
        "fencing_token": token,
        "tokens": 64,
        "blocks": 4,
        "handle": handle_of(),
    }
    return Lease(**(values | changes))


def ended(token: int, reason: EndReason, session_id: str = "s") -> Lease:
    return lease(token, session_id, state=LeaseState.ENDED, end_reason=reason)


def upserted(value: Lease, revision: int = 1) -> Upserted[Lease]:
    return Upserted(value.lease_id, value, revision)


class Remote:
    """A running registry on scripted leases."""

    def __init__(self) -> None:
        self.leases = RemoteLeases()
        self.plane = StatePlane()
        self.registry = SessionRegistry(
            table=self.plane.store.table(SESSIONS),
            codec=SessionCodec(),
            leases=self.leases,
            control=self.leases,
            members=self.plane.members,
            reachable=lambda: True,
            clock=self.plane.clock,
        )
        self.plane.registry = self.registry

    async def hear(self, *events: Event[Lease]) -> None:
        self.leases.send(*events)
        await self.plane.settle()

    def state(self, session_id: str = "s") -> SessionState:
        return self.registry.get(key_of(session_id)).state
