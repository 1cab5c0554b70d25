"""A plane whose every answer is compared with what it must have promised."""

import pytest

from kvplane_services.engine.answers import HeartbeatOutcome
from kvplane_services.engine.model import Engine
from kvplane_services.errors import EpochStale, LeaseFenced
from kvplane_services.lease.model import EndReason, Lease, LeaseState, RenewalOutcome
from kvplane_services.lease.ports import LeaseRenewal
from kvplane_services.lease.reports import EngineReport
from kvplane_services.store.model import Removed, Synced, Upserted
from kvplane_services.store.paging import PageRequest
from tests.support.checked_answers import CONFIG, CheckedAnswers, LargestToken
from tests.support.clock import FakeClock
from tests.support.engine_model import EngineModel
from tests.support.lease_promises import Promise, Promises
from tests.support.state_plane import StatePlane
from tests.support.state_values import lease_for

# Rounding of times of day to microseconds.
_TOLERANCE = 1e-4


class CheckedPlane:
    """Runs a plane's lease manager and directory step by step, beside its promises."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.largest_token = LargestToken()
        self._start()

    def _start(self) -> None:
        self.plane = StatePlane(clock=self.clock, leases=CONFIG)
        self.promises = Promises(grace=CONFIG.grace, remember_ended=CONFIG.remember_ended)
        self.registrations: dict[str, Engine] = {}
        self._answers = CheckedAnswers(
            promises=self.promises, clock=self.clock, largest_token=self.largest_token
        )
        self._revision = self.plane.store.revision
        self._seen: dict[str, Lease] = {}

    def now(self) -> float:
        """Seconds on the plane's clock."""
        return self.clock.now()

    # -- Engines -----------------------------------------------------------------------------

    async def register(self, engine: EngineModel, *, ttl: float) -> None:
        """An engine registers: leases of its earlier registrations are over."""
        old = self.registrations.get(engine.engine_id)
        new = await self.plane.register(engine.described, ttl=ttl)
        assert old is None or new.epoch > old.epoch
        self.registrations[engine.engine_id] = engine.registered = new
        self.promises.end_all(engine.engine_id, EndReason.FENCED, self.now(), before=new.epoch)
        self._forget_stream(engine.engine_id)

    async def register_stock(self, engine: Engine, *, ttl: float) -> Engine:
        """An engine that reports nothing is registered for it."""
        new = await self.plane.register(engine, ttl=ttl)
        self.registrations[engine.engine_id] = new
        self.promises.end_all(engine.engine_id, EndReason.FENCED, self.now(), before=new.epoch)
        return new

    async def deregister(self, engine: EngineModel, *, stale: bool) -> None:
        """An engine leaves: its leases are over, unless another took its place."""
        assert engine.registered is not None
        known = self.registrations.get(engine.engine_id)
        epoch = engine.registered.epoch - stale
        leaving = self.plane.directory.deregister(engine.engine_id, epoch)
        if known is not None and known.epoch != epoch:
            with pytest.raises(EpochStale):
                await leaving
            return
        try:
            await leaving
        except EpochStale:
            # Of a lost engine the plane may still know the epoch, or not.
            assert stale
            assert known is None
            return
        await self.plane.manager.observe_gone(engine.engine_id)
        self._lost(engine.engine_id)

    async def arrive(self, engine: EngineModel) -> None:
        """An engine's frame arrives; the answer goes on its way, or says to register again."""
        frame = engine.frame
        assert frame is not None
        known = self.registrations.get(engine.engine_id)
        beat = await self.plane.directory.heartbeat(engine.engine_id, frame.epoch, frame.load)
        if known is None or known.epoch != frame.epoch:
            _check_refused(beat.outcome, known)
            engine.registered = None
            engine.cut()
            return
        assert beat.outcome is HeartbeatOutcome.RENEWED
        assert beat.engine is not None
        answer = await self.plane.manager.report(beat.engine, frame.report)
        self._answers.check(beat.engine, frame, answer)
        engine.answered(answer.directives)

    async def arrive_late(self, engine: Engine, report: EngineReport) -> None:
        """A frame of an earlier registration arrives: it changes nothing and gets no orders."""
        known = self.registrations.get(engine.engine_id)
        beat = await self.plane.directory.heartbeat(engine.engine_id, engine.epoch)
        assert known is None or known.epoch > engine.epoch
        _check_refused(beat.outcome, known)
        answer = await self.plane.manager.report(engine, report)
        assert answer.directives == ()

    # -- Holders -----------------------------------------------------------------------------

    def claim(self, promise: Promise, holder: str, *, off: int, ttl: float, drop: bool) -> None:
        """A holder claims a lease, or drops its claim, with the right token or another."""
        now = self.now()
        renewal = LeaseRenewal(promise.name, promise.token + off, ttl, drop=drop)
        (result,) = self.plane.manager.claim(holder, [renewal])
        granted = CONFIG.clamp_claim(ttl)
        if promise.fixed:
            granted = min(granted, promise.deadline - CONFIG.grace - now)
        if not promise.live:
            expected = RenewalOutcome.NOT_FOUND
        elif off:
            expected = RenewalOutcome.FENCED
        elif promise.release is not None or (granted <= 0 and not drop):
            expected = RenewalOutcome.NOT_FOUND
        else:
            expected = RenewalOutcome.RENEWED
        assert result.outcome is expected
        if not promise.live or off:
            return
        standing = promise.standing(now)
        if drop and holder in standing:
            del promise.claims[holder]
            promise.used_at = now
        elif not drop and expected is RenewalOutcome.RENEWED:
            assert result.ttl == granted
            promise.claims[holder] = now + max(granted, standing.get(holder, granted))
            promise.used_at = now

    async def release(self, promise: Promise, *, off: int) -> None:
        """Somebody gives a lease up, with the right token or another."""
        releasing = self.plane.manager.release(promise.name, promise.token + off)
        if promise.live and off:
            with pytest.raises(LeaseFenced):
                await releasing
            return
        await releasing
        self.promises.release(promise, EndReason.RELEASED)

    async def grant_fixed(
        self, engine: Engine, retention_id: str, session: str, *, ttl: float
    ) -> None:
        """A gateway asks for a lease on what an engine holds for a fixed time."""
        known = self.registrations.get(engine.engine_id)
        granting = self.plane.manager.grant(lease_for(engine, retention_id, session), ttl=ttl)
        if known is not None and known.epoch != engine.epoch:
            with pytest.raises(EpochStale):
                await granting
            return
        lease = (await granting).lease
        held = self.promises.find(engine.engine_id, retention_id)
        if held is not None:
            assert lease.name == held.name
            return
        self.largest_token.grow(lease.fencing_token)
        self.promises.grant(
            Promise(
                name=lease.name,
                token=lease.fencing_token,
                engine_id=engine.engine_id,
                epoch=engine.epoch,
                retention_id=retention_id,
                session=session,
                blocks=lease.blocks,
                deadline=self.now() + ttl + CONFIG.grace,
                used_at=self.now(),
                fixed=True,
            )
        )

    # -- Time, and the plane itself ----------------------------------------------------------

    async def advance(self, seconds: float) -> list[Promise]:
        """Time passes, and the plane looks who is late; returns the leases that ran out."""
        await self.clock.advance(seconds)
        await self.plane.manager.sweep()
        due = self.promises.pass_to(self.now())
        await self.plane.directory.sweep()
        for engine_id, known in list(self.registrations.items()):
            found = self.plane.directory.find(engine_id)
            assert found is None or found.epoch == known.epoch
            if found is None:
                await self.plane.manager.observe_gone(engine_id)
                self._lost(engine_id)
                continue
            await self.plane.manager.observe(found)
            if found.expire_time is None:
                self._lost(engine_id)
        return due

    async def restart(self) -> None:
        """The plane comes back with an empty memory, a second later."""
        await self.clock.advance(1.0)
        self._start()

    # -- What must hold ----------------------------------------------------------------------

    async def check(self) -> None:
        """What anybody can read is what was promised, to the moment."""
        await self._check_listing()
        await self._check_events()

    async def _check_listing(self) -> None:
        page = await self.plane.manager.list(PageRequest(1000), include_ended=True)
        assert {lease.name for lease in page.items} == set(self.promises.all)
        now, wall = self.now(), self.clock.wall()
        for lease in page.items:
            promise = self.promises.all[lease.name]
            assert (lease.state, lease.fencing_token) == (promise.state, promise.token), promise
            assert lease.end_reason is promise.ended, promise
            if not promise.live:
                continue
            assert lease.expire_time is not None
            left = (lease.expire_time - wall).total_seconds()
            assert abs(left - (promise.deadline - now)) < _TOLERANCE, promise
            claims = {claim.holder: claim.remaining for claim in lease.claims}
            assert claims == pytest.approx(promise.standing(now))

    async def _check_events(self) -> None:
        # Followers see each lease go forward only, and end once.
        for lease in await self._events():
            before = self._seen.get(lease.lease_id)
            if before is not None:
                assert before.state is not LeaseState.ENDED, "an ended lease changed"
                assert before.fencing_token == lease.fencing_token
                backwards = (before.state, lease.state) == (
                    LeaseState.RELEASING,
                    LeaseState.ACTIVE,
                )
                assert not backwards
            assert (lease.state is LeaseState.ENDED) == (lease.end_reason is not None)
            self._seen[lease.lease_id] = lease
        for promise in self.promises.all.values():
            seen = self._seen[promise.name.removeprefix("leases/")]
            assert (seen.state, seen.end_reason) == (promise.state, promise.ended)

    async def _events(self) -> list[Lease]:
        leases = []
        async for event in self.plane.manager.watch(after=self._revision):
            match event:
                case Upserted(value=lease):
                    leases.append(lease)
                case Removed(key=lease_id):
                    assert f"leases/{lease_id}" not in self.promises.all
                case Synced(revision=revision):
                    self._revision = revision
                    break
                case _:
                    pass
        return leases

    # -- Steps -------------------------------------------------------------------------------

    def _lost(self, engine_id: str) -> None:
        """The plane gave an engine up."""
        if self.registrations.pop(engine_id, None) is not None:
            for promise in self.promises.on_engine(engine_id):
                self.promises.end(promise, EndReason.ENGINE_LOST, self.now())

    def _forget_stream(self, engine_id: str) -> None:
        for promise in self.promises.on_engine(engine_id):
            promise.told = False


def _check_refused(outcome: HeartbeatOutcome, known: Engine | None) -> None:
    """Nobody's epoch is taken for another's; of a lost engine either answer is right."""
    assert outcome is not HeartbeatOutcome.RENEWED
    assert known is None or outcome is HeartbeatOutcome.FENCED
