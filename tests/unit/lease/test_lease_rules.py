"""The rules of leases, under arbitrary sequences of reports, claims, releases and time.

Runs the ledger and the reconciler as the manager does, beside a model of one engine's truth.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from kvplane_services.errors import LeaseFenced
from kvplane_services.lease.config import LeaseConfig
from kvplane_services.lease.model import EndReason, Lease, LeaseState, RenewalOutcome
from kvplane_services.lease.ports import LeaseRenewal
from kvplane_services.lease.reports import EngineReport, ReportAnswer
from kvplane_services.store.ports import Upserted
from tests.support.state_plane import StatePlane
from tests.support.state_values import engine_of, full, retention_of

T = TypeVar("T")

ENGINES = ("d0", "d1")
SESSIONS = ("a", "b", "c")


class LeaseRules(RuleBasedStateMachine):
    """Two engines, three sessions, a manager, and what each engine really holds."""

    retentions = Bundle("retentions")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        # Long registrations: engines live here until a rule ends them.
        self.plane = StatePlane(leases=LeaseConfig(remember_ended=1e9))
        self.engines = {
            name: self.wait(self.plane.register(engine_of(name), ttl=300.0)) for name in ENGINES
        }
        # What each engine holds: retention -> (session, lease told, token told, held until).
        self.held: dict[str, dict[str, list[Any]]] = {name: {} for name in ENGINES}
        self.numbers = 0
        self.granted: dict[str, int] = {}
        self.ended: dict[str, EndReason] = {}
        self.revision = self.plane.store.revision
        self.deadlines: dict[str, float] = {}

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coroutine)

    def teardown(self) -> None:
        self.loop.close()

    # -- What happens ------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        for name in ENGINES:
            self.report(name, full())

    @rule(target=retentions, engine=st.sampled_from(ENGINES), session=st.sampled_from(SESSIONS))
    def finish_turn(self, engine: str, session: str) -> tuple[str, str]:
        """A turn leaves a retention, which the engine reports at once."""
        self.numbers += 1
        retention_id = f"r{self.numbers}"
        self.held[engine][retention_id] = [session, "", 0, self.now() + 30.0]
        self.report(engine, EngineReport(retentions=(self.told(engine, retention_id),)))
        return engine, retention_id

    @rule(
        retention=consumes(retentions),
        reason=st.sampled_from([EndReason.RECLAIMED, EndReason.EXPIRED]),
    )
    def break_retention(self, retention: tuple[str, str], reason: EndReason) -> None:
        """The engine frees a retention and says so."""
        engine, retention_id = retention
        if self.held[engine].pop(retention_id, None) is not None:
            self.report(engine, EngineReport(ended=((retention_id, reason),)))

    @rule(engine=st.sampled_from(ENGINES))
    def beat(self, engine: str) -> None:
        """Nothing happened."""
        self.report(engine, EngineReport())

    @rule(engine=st.sampled_from(ENGINES), forgotten=st.sets(st.integers(1, 40), max_size=3))
    def reconnect(self, engine: str, forgotten: set[int]) -> None:
        """The stream broke; some retentions ended meanwhile."""
        for number in forgotten:
            self.held[engine].pop(f"r{number}", None)
        self.report(engine, full(*(self.told(engine, each) for each in self.held[engine])))

    @rule(engine=st.sampled_from(ENGINES))
    def restart_engine(self, engine: str) -> None:
        """The engine comes back empty under a new epoch."""
        self.held[engine].clear()
        old = self.engines[engine]
        self.engines[engine] = self.wait(self.plane.register(engine_of(engine), ttl=300.0))
        assert self.engines[engine].epoch > old.epoch
        self.report(engine, full())

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 10.0, 31.0, 120.0]))
    def pass_time(self, seconds: float) -> None:
        """Time passes; engines free what was not renewed, and tell later."""
        self.wait(self.plane.clock.advance(seconds))
        for name in ENGINES:
            self.wait(self.plane.directory.heartbeat(name, self.engines[name].epoch))
        self.wait(self.plane.directory.sweep())
        self.wait(self.plane.manager.sweep())
        for name in ENGINES:
            over = [each for each, held in self.held[name].items() if held[3] <= self.now()]
            for retention_id in over:
                del self.held[name][retention_id]
            ends = tuple((each, EndReason.EXPIRED) for each in over)
            self.report(name, EngineReport(ended=ends))

    @rule(retention=retentions, off=st.sampled_from([-1, 0, 1]), drop=st.booleans())
    def claim(self, retention: tuple[str, str], off: int, *, drop: bool) -> None:
        """A holder claims a lease, with the right token or another."""
        lease = self.lease_of(retention)
        if lease is None:
            return
        renewal = LeaseRenewal(lease.name, lease.fencing_token + off, 20.0, drop=drop)
        (outcome,) = self.wait(self.plane.manager.renew("h", [renewal]))
        live = self.plane.manager.get(lease.name).state
        if live is LeaseState.ENDED:
            assert outcome is RenewalOutcome.NOT_FOUND
        elif off:
            assert outcome is RenewalOutcome.FENCED
        else:
            expected = {
                LeaseState.ACTIVE: RenewalOutcome.RENEWED,
                LeaseState.RELEASING: RenewalOutcome.NOT_FOUND,
            }
            assert outcome is expected[live]

    @rule(retention=retentions, off=st.sampled_from([-1, 0, 1]))
    def release(self, retention: tuple[str, str], off: int) -> None:
        """Somebody gives a lease up, with the right token or another."""
        lease = self.lease_of(retention)
        if lease is None:
            return
        before = self.plane.manager.get(lease.name)
        try:
            self.wait(self.plane.manager.release(lease.name, lease.fencing_token + off))
        except LeaseFenced:
            assert off
            assert self.plane.manager.get(lease.name).state is before.state
        else:
            assert off == 0 or before.state is LeaseState.ENDED

    # -- What must hold ----------------------------------------------------------------------

    @invariant()
    def one_active_lease_per_session(self) -> None:
        """Of a session's live leases at most one is active, and no other has a larger token."""
        for session in SESSIONS:
            live = [
                record.lease
                for record in self.plane.manager._ledger.live()
                if record.lease.session_key.session_id == session
            ]
            active = [lease for lease in live if lease.state is LeaseState.ACTIVE]
            assert len(active) <= 1
            for lease in active:
                assert lease.fencing_token == max(each.fencing_token for each in live)

    @invariant()
    def what_engines_hold_is_leased(self) -> None:
        """Every retention that an engine holds has exactly one live lease, and no other has one."""
        for name in ENGINES:
            leased = {
                record.lease.retention_id for record in self.plane.manager._ledger.on_engine(name)
            }
            assert leased == set(self.held[name])

    @invariant()
    def leases_end_once_and_tokens_grow(self) -> None:
        """Followers see each grant with a larger token than before, and one end for each lease."""
        for event in self.wait(self.events()):
            lease = event.value
            self.revision = event.revision
            if lease.lease_id not in self.granted:
                assert lease.state is LeaseState.ACTIVE
                assert lease.fencing_token > max(self.granted.values(), default=0)
                self.granted[lease.lease_id] = lease.fencing_token
            assert lease.lease_id not in self.ended
            assert lease.fencing_token == self.granted[lease.lease_id]
            if lease.state is LeaseState.ENDED:
                assert lease.end_reason is not None
                self.ended[lease.lease_id] = lease.end_reason

    @invariant()
    def deadlines_never_move_back(self) -> None:
        """A lease's deadline only moves to a later time, and lies after its engine's own."""
        ledger = self.plane.manager._ledger
        for record in ledger.live():
            deadline = ledger.deadline(record)
            assert deadline >= self.deadlines.get(record.lease_id, 0.0)
            self.deadlines[record.lease_id] = deadline
            held = self.held[record.lease.engine_id][record.lease.retention_id]
            assert deadline >= held[3]

    # -- The engines' side -------------------------------------------------------------------

    def now(self) -> float:
        return self.plane.clock.now()

    def told(self, engine: str, retention_id: str) -> Any:
        session, lease, token, until = self.held[engine][retention_id]
        return retention_of(
            retention_id,
            session,
            lease=lease,
            fencing_token=token,
            remaining=max(0.0, until - self.now()),
        )

    def report(self, engine: str, report: EngineReport) -> None:
        answer: ReportAnswer = self.wait(self.plane.manager.report(self.engines[engine], report))
        told: set[str] = set()
        for directive in answer.directives:
            assert directive.retention_id not in told
            told.add(directive.retention_id)
            held = self.held[engine][directive.retention_id]
            assert directive.fencing_token >= held[2]
            held[1], held[2] = directive.lease, directive.fencing_token
            if directive.release is None:
                held[3] = max(held[3], self.now() + directive.renew)

    def lease_of(self, retention: tuple[str, str]) -> Lease | None:
        engine, retention_id = retention
        held = self.held[engine].get(retention_id)
        return self.plane.manager.get(held[1]) if held and held[1] else None

    async def events(self) -> list[Upserted[Lease]]:
        events = []
        async for event in self.plane.manager.watch(after=self.revision):
            if not isinstance(event, Upserted):
                break
            events.append(event)
        return events


LeaseRules.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLeaseRules = LeaseRules.TestCase
