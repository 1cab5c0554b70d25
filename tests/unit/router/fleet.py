"""Engines, leases and a router over a view that tests feed by hand."""

import asyncio
import itertools
import json
from dataclasses import dataclass, field, replace
from typing import Any

from kvplane_services.engine.model import (
    ConnectorKind,
    Engine,
    EngineBuild,
    EngineLoad,
    EngineState,
    FixedRetention,
    KvLayout,
    Role,
)
from kvplane_services.errors import FailedPrecondition, Unavailable
from kvplane_services.lease.model import EndReason, Handle, Lease, LeaseState
from kvplane_services.router.config import RouterConfig
from kvplane_services.router.decider import Decider
from kvplane_services.router.explain import Explainer
from kvplane_services.router.fixed_retentions import FixedRetentions
from kvplane_services.router.inflight import InFlight
from kvplane_services.router.model import Decision, LegKind, LegReport, RouteOutcome, Subject
from kvplane_services.router.view import RouterView
from kvplane_services.session.model import SessionKey
from kvplane_services.store.model import Removed, Synced, Upserted
from tests.support.clock import FakeClock

MODEL = "m"


def key(session_id: str = "s", *, model: str = MODEL, tenant: str = "t") -> SessionKey:
    return SessionKey(tenant, model, "", session_id)


def subject(session_id: str = "s", *digests: bytes, model: str = MODEL) -> Subject:
    return Subject(session_key=key(session_id, model=model), message_digests=digests)


def engine(
    engine_id: str,
    role: Role,
    *,
    state: EngineState = EngineState.ACTIVE,
    connector: ConnectorKind = ConnectorKind.KVPLANE,
    models: tuple[str, ...] = (MODEL,),
    epoch: int = 1,
    block_size: int = 16,
    waiting: int = 0,
    retained: int = 0,
    vllm: str = "0.32.0",
    fixed: FixedRetention | None = None,
) -> Engine:
    return Engine(
        engine_id=engine_id,
        role=role,
        endpoint=f"http://{engine_id}:8000",
        models=models,
        build=EngineBuild(connector=connector, vllm_version=vllm),
        epoch=epoch,
        state=state,
        layout=KvLayout(block_size=block_size, total_blocks=100),
        load=EngineLoad(waiting_requests=waiting, retained_blocks=retained),
        fixed_retention=fixed,
    )


def prefill(engine_id: str = "p", **changes: Any) -> Engine:
    return engine(engine_id, Role.PREFILL, **changes)


def decode(engine_id: str = "d", **changes: Any) -> Engine:
    return engine(engine_id, Role.DECODE, **changes)


HANDLE = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": "e1",
    "remote_block_ids": [[1, 2, 3]],
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "kvplane": {"algorithm": "blake2b-128/2"},
}


def lease(
    session_id: str = "s",
    *,
    lease_id: str = "l1",
    engine_id: str = "d",
    token: int = 1,
    tokens: int = 1000,
    epoch: int = 1,
    decision_id: str = "",
    message_digest: bytes = b"",
    handle: bytes | None = None,
    ttl: float = 0.0,
    history_digest: bytes = b"",
) -> Lease:
    return Lease(
        lease_id=lease_id,
        session_key=key(session_id),
        engine_id=engine_id,
        engine_epoch=epoch,
        retention_id=f"r-{lease_id}",
        fencing_token=token,
        tokens=tokens,
        blocks=63,
        handle=Handle(json.dumps(HANDLE).encode() if handle is None else handle),
        decision_id=decision_id,
        message_digest=message_digest,
        ttl=ttl,
        history_digest=history_digest,
    )


@dataclass
class RecordedClaims:
    """Remembers claims; see `router.decider.Claims`."""

    held: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    _turns: set[str] = field(default_factory=set)

    def claim(self, lease: str, fencing_token: int, *, turn: str) -> None:
        self.held.append(f"{lease}@{fencing_token}")
        self._turns.add(turn)

    def drop(self, lease: str, *, turn: str) -> None:
        if turn in self._turns:
            self._turns.remove(turn)
            self.dropped.append(lease)


@dataclass
class FixedControl:
    """Gives every read out once, and takes what is to be leased; see `FixedLeaseControl`."""

    leased: list[tuple[Lease, float]] = field(default_factory=list)
    consumed: list[str] = field(default_factory=list)
    away: int = 0
    # What a read waits for before it is given out.
    hurdle: asyncio.Event | None = None

    async def lease_fixed(self, lease: Lease, *, ttl: float, request_id: str) -> None:
        assert request_id
        if self.away:
            self.away -= 1
            raise Unavailable("no store", retry_after=1.0)
        self.leased.append((lease, ttl))

    async def consume(self, lease: str, fencing_token: int) -> None:
        assert fencing_token
        if self.hurdle is not None:
            await self.hurdle.wait()
        if lease in self.consumed:
            raise FailedPrecondition(f"{lease} is given out already")
        self.consumed.append(lease)


class Fleet:
    """A router whose view is what the test puts into it."""

    def __init__(self, *engines: Engine, config: RouterConfig | None = None) -> None:
        self.config = config or RouterConfig()
        self.clock = FakeClock()
        self.view = RouterView(
            clock=self.clock, grace=self.config.restart_grace, memory=self.config.memory
        )
        self.in_flight = InFlight(limit=self.config.max_in_flight, retry_after=1.0)
        self.claims = RecordedClaims()
        self.fixed = FixedControl()
        self.unreported = FixedRetentions(
            control=self.fixed, clock=self.clock, limit=self.config.memory
        )
        self._ids = itertools.count(1)
        self.router = Decider(
            view=self.view,
            in_flight=self.in_flight,
            claims=self.claims,
            unreported=self.unreported,
            config=self.config,
            clock=self.clock,
            new_id=lambda: f"id-{next(self._ids)}",
        )
        self.explainer = Explainer(view=self.view, in_flight=self.in_flight, config=self.config)
        for one in engines:
            self.put(one)
        self.view.apply_engine(Synced(1))
        self.view.apply_lease(Synced(1))

    def put(self, one: Engine) -> None:
        self.view.apply_engine(Upserted(one.engine_id, one, 1))

    def remove(self, engine_id: str) -> None:
        """The engine deregisters."""
        known = self.view.engine(f"engines/{engine_id}")
        if known is not None:
            self.put(replace(known, state=EngineState.LOST))
        self.vanish(engine_id)

    def vanish(self, engine_id: str) -> None:
        """The engine is removed, nobody says why."""
        self.view.apply_engine(Removed(engine_id, 1))

    def grant(self, one: Lease) -> Lease:
        self.view.apply_lease(Upserted(one.lease_id, one, 1))
        return one

    def end(self, one: Lease, reason: EndReason) -> None:
        self.grant(replace(one, state=LeaseState.ENDED, end_reason=reason))


def done(decision: Decision, outcome: RouteOutcome = RouteOutcome.SUCCEEDED) -> LegReport:
    """The report of a decode leg that is over."""
    return LegReport(decision_id=decision.decision_id, leg=LegKind.DECODE, outcome=outcome)
