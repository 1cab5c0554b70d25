"""The rules of leases at two replicas of one store, each of which may be cut from it.

Engines move their streams from one to the other as they like, holders claim and release at
either. While a replica is cut off nobody's lease ends early; afterwards both agree, with each
other, with the store, and with what the engines hold.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvplane_services.adapters.records import LEASES
from kvplane_services.engine.answers import HeartbeatOutcome
from kvplane_services.engine.registration import DirectoryConfig
from kvplane_services.errors import LeaseFenced, Unavailable
from kvplane_services.lease.config import LeaseConfig
from kvplane_services.lease.model import EndReason, Lease, LeaseState, RenewalOutcome
from kvplane_services.lease.ports import LeaseRenewal
from kvplane_services.store.paging import PageRequest
from tests.support.effort import TIMEOUT, effort
from tests.support.engine_model import EngineModel
from tests.support.lease_history import LeaseHistory
from tests.support.state_plane import Replicas, StatePlane

pytestmark = TIMEOUT

T = TypeVar("T")

# Looks rarely at what time does, so that more can be tried.
CONFIG = LeaseConfig(sweep_interval=2.5)
# How long an engine may be silent.
TTL = 120.0
DIRECTORY = DirectoryConfig(ttl=TTL, min_ttl=TTL, heartbeat_interval=10.0)
# How long a frame takes at most, whatever the store does.
PATIENCE = 10.0
SESSIONS = ("a", "b")

sessions = st.sampled_from(SESSIONS)

engines = st.sampled_from(["d0", "d1"])
replicas = st.sampled_from([0, 1])
picks = st.integers(0, 11)
# Whether a frame goes out at once.
soon = st.sampled_from([True, True, True, False])


class ReplicaProperties(RuleBasedStateMachine):
    """Two engines, two replicas, two sessions, and one store."""

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Replicas(2, leases=CONFIG, directory=DIRECTORY)
        self.history = LeaseHistory(self.fleet.shared)
        clock = self.fleet.clock
        self.engines = {name: EngineModel(name, clock) for name in ("d0", "d1")}
        # Where each engine's stream goes, and when it was last answered.
        self.at = {"d0": 0, "d1": 1}
        self.answered = dict.fromkeys(self.at, clock.now())
        self.turns = 0
        # Whether the store has lost its data.
        self.lost = False
        # Leases that somebody wanted gone, those where that is known, and the largest token of
        # each session.
        self.released: set[str] = set()
        self.surely_released: set[str] = set()
        self.newest: dict[str, int] = {}
        self.loop = asyncio.new_event_loop()
        self.over = asyncio.Event()
        self.running = self.loop.create_task(self.run())
        self.wait(self.fleet.settle())

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(part.run())
                for plane in self.fleet.planes
                for part in (plane.homes, plane.directory, plane.manager)
            ]
            running.append(tasks.create_task(self.history.run()))
            await self.over.wait()
            for task in running:
                task.cancel()

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coroutine)

    def teardown(self) -> None:
        try:
            if not self.running.done():
                self.agree()
                self.fall_silent()
        finally:
            self.over.set()
            self.wait(asyncio.wait({self.running}))
            self.loop.close()

    @initialize()
    def begin(self) -> None:
        for name in self.engines:
            self.beat(name)

    # -- Engines -----------------------------------------------------------------------------

    @rule(name=engines, session=sessions, beats=soon)
    def finish_turn(self, name: str, session: str, *, beats: bool) -> None:
        """A turn leaves a retention, of which the plane hears at once or later."""
        self.turns += 1
        self.engines[name].begin(f"r{self.turns}", session=session, blocks=4, ttl=CONFIG.ttl)
        if beats:
            self.beat(name)

    @rule(name=engines, pick=picks, what=st.sampled_from(["free", "lose", "released"]), beats=soon)
    def free(self, name: str, pick: int, what: str, *, beats: bool) -> None:
        """An engine frees a retention, for memory's sake or since it was told to."""
        engine = self.engines[name]
        if what == "released":
            engine.free_released()
        elif engine.held:
            retention_id = list(engine.held)[pick % len(engine.held)]
            if what == "free":
                engine.free(retention_id, EndReason.RECLAIMED)
            else:
                engine.lose(retention_id)
        if beats:
            self.beat(name)

    @rule(
        name=engines,
        what=st.sampled_from(["beat", "move", "move", "lose answer", "restart"]),
        beats=soon,
    )
    def change_stream(self, name: str, what: str, *, beats: bool) -> None:
        """A stream goes on, breaks and goes to the other replica, or is a new process's."""
        engine = self.engines[name]
        match what:
            case "move":
                engine.cut()
                self.at[name] = 1 - self.at[name]
            case "lose answer":
                self.wait(self.exchange(engine, heard=False))
            case "restart":
                engine.restart()
                beats = True
        if beats:
            self.beat(name)

    # -- The store ---------------------------------------------------------------------------

    @rule(
        replica=replicas,
        how=st.sampled_from([None, None, {}, {"hangs": 5.0}, {"hangs": 5.0, "notices": False}]),
    )
    def change_store(self, replica: int, how: dict[str, Any] | None) -> None:
        """A replica is cut from the store, and notices or does not; or it is back."""
        store = self.fleet.stores[replica]
        if how is None and store.away:
            store.heal()
            self.wait(self.fleet.settle())
        elif how is not None and not store.away:
            store.cut(**how)
            self.history.whole = False

    @rule(really=st.sampled_from([False, False, True]))
    def lose_everything(self, *, really: bool) -> None:
        """The store goes on without its data."""
        if really:
            self.fleet.shared.lose_everything()
            self.history.whole = False
            self.surely_released.clear()
            self.lost = True
            self.wait(self.fleet.settle())

    # -- Holders -----------------------------------------------------------------------------

    @rule(
        replica=replicas,
        pick=picks,
        off=st.sampled_from([0, 0, 0, -1, 1]),
        what=st.sampled_from(["claim", "drop", "release"]),
    )
    def use_lease(self, replica: int, pick: int, off: int, what: str) -> None:
        """Somebody claims a lease at any replica, drops a claim, or gives the lease up."""
        lease = self.pick_lease(pick)
        if lease is None:
            return
        if what == "release":
            self.wait(self.release(replica, lease, off))
            return
        renewal = LeaseRenewal(lease.name, lease.fencing_token + off, 500.0, drop=what == "drop")
        (result,) = self.fleet.planes[replica].manager.claim("h", [renewal])
        assert not off or result.outcome is not RenewalOutcome.RENEWED
        self.wait(self.fleet.settle())

    # -- Time --------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1.0, 5.0, 20.0, 40.0]), beats=soon)
    def pass_time(self, seconds: float, *, beats: bool) -> None:
        """Time passes, in which engines are heard or are not."""
        left = seconds
        while left > 0:
            self.wait(self.advance(min(left, 5.0)))
            left -= 5.0
            # Nobody falls silent for as long as would make it lost.
            for name in self.engines:
                if beats or self.fleet.clock.now() - self.answered[name] > TTL / 2:
                    self.beat(name)

    def agree(self) -> None:
        """Once all reach the store, and engines are heard, everybody knows the same."""
        for replica in (0, 1):
            self.change_store(replica, None)
        # For longer than a lease lasts that nobody renews: whoever was home before lets go of it.
        for _ in range(9):
            self.wait(self.advance(5.0, step=2.5))
            for name in self.engines:
                self.beat(name)
        self.wait(self.fleet.settle())
        held = {(name, each) for name, engine in self.engines.items() for each in engine.held}
        views = [self.view(plane) for plane in self.fleet.planes]
        assert views[0] == views[1]
        for view in views:
            live = [(lease.engine_id, lease.retention_id) for lease in view.values()]
            assert sorted(live) == sorted(held)
            given_up = [lease for name, lease in view.items() if name in self.surely_released]
            assert all(lease.state is LeaseState.RELEASING for lease in given_up)
            for session in SESSIONS:
                leases = [each for each in view.values() if each.session_key.session_id == session]
                active = [each for each in leases if each.state is LeaseState.ACTIVE]
                assert len(active) <= 1
                if active:
                    assert active[0].fencing_token == max(each.fencing_token for each in leases)
        assert self.stored() == {name: lease.state for name, lease in views[0].items()}
        for name in self.engines:
            assert [plane.homes.is_home(name) for plane in self.fleet.planes].count(True) == 1

    def fall_silent(self) -> None:
        """Nobody is heard any more: every lease ends, and everybody says so."""
        for _ in range(int((TTL + CONFIG.ttl + CONFIG.grace) / 5) + 4):
            self.wait(self.fleet.advance(5.0, step=5.0))
        self.free_due()
        assert [self.view(plane) for plane in self.fleet.planes] == [{}, {}]
        assert self.stored() == {}
        assert set(self.history.ends.values()) <= {1}
        assert self.history.faults == []

    # -- What must hold ----------------------------------------------------------------------

    @invariant()
    def writes_go_forward(self) -> None:
        """Each lease is released once and ends once, for the first reason."""
        assert not self.running.done(), self.running.exception()
        assert self.history.faults == []

    @invariant()
    def nothing_ends_early(self) -> None:
        """What an engine holds, nobody wanted gone and nothing superseded, has not ended."""
        newest = dict(self.newest)
        for lease in self.history.last.values():
            # Granted late, and not told to its engine yet.
            session = lease.session_key.session_id
            newest[session] = max(newest.get(session, 0), lease.fencing_token)
        for engine in self.engines.values():
            for held in engine.held.values():
                wanted = held.fencing_token == newest.get(held.session)
                if held.lease and wanted and held.lease not in self.released:
                    written = self.history.last.get(held.lease)
                    assert written is None or written.state is LeaseState.ACTIVE, written

    # -- Steps -------------------------------------------------------------------------------

    def beat(self, name: str) -> None:
        """A frame goes to the engine's replica and is answered, or not."""
        self.wait(self.exchange(self.engines[name]))

    async def exchange(self, engine: EngineModel, *, heard: bool = True) -> None:
        """Makes a heartbeat, registering before where that is needed."""
        name = engine.engine_id
        plane = self.fleet.planes[self.at[name]]
        try:
            if engine.registered is None:
                registering = plane.register(engine.described, ttl=TTL)
                engine.registered = await self.in_time(registering)
            await self.in_time(self.report(plane, engine))
        except (Unavailable, TimeoutError):
            # The next attempt goes to the other replica.
            engine.cut()
            self.at[name] = 1 - self.at[name]
            return
        self.answered[name] = self.fleet.clock.now()
        if engine.frame is None:
            return
        if heard:
            engine.hear()
        else:
            engine.cut()

    async def report(self, plane: StatePlane, engine: EngineModel) -> None:
        frame = engine.send()
        beat = await plane.directory.heartbeat(engine.engine_id, frame.epoch, frame.load)
        if beat.outcome is HeartbeatOutcome.NOT_FOUND:
            self.begin_again(engine)
            return
        assert beat.outcome is HeartbeatOutcome.RENEWED
        assert beat.engine is not None
        answer = await plane.manager.report(beat.engine, frame.report)
        for directive in answer.directives:
            held = engine.held.get(directive.retention_id)
            if held is None:
                continue  # Freed since the frame was sent.
            assert held.fencing_token in (0, directive.fencing_token), "another token"
            known = held.lease in ("", directive.lease) or held.lease in self.released
            assert known, "another lease on the same retention"
            token = max(self.newest.get(held.session, 0), directive.fencing_token)
            self.newest[held.session] = token
        engine.answered(answer.directives)
        if answer.full_report_needed:
            engine.streaming = False

    def begin_again(self, engine: EngineModel) -> None:
        """An engine is told to register again: its leases end, and what it holds gets others.

        That happens where the store lost its data while a replica was cut off, which puts back
        what was so before: another replica's registration since is not in the store then.
        """
        assert self.lost, "told to register again"
        assert not self.history.whole
        engine.registered = None
        engine.cut()
        self.released.update(held.lease for held in engine.held.values())

    async def release(self, replica: int, lease: Lease, off: int) -> None:
        manager = self.fleet.planes[replica].manager
        try:
            await self.in_time(manager.release(lease.name, lease.fencing_token + off))
        except LeaseFenced:
            assert off
            return
        except (Unavailable, TimeoutError):
            if not off:
                self.released.add(lease.name)
            return
        if not off:
            self.released.add(lease.name)
            self.surely_released.add(lease.name)

    async def in_time(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a call, for which time passes as it needs it."""
        task = asyncio.ensure_future(coroutine)
        waited = 0.0
        await self.fleet.settle()
        while not task.done():
            if waited >= PATIENCE:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                raise TimeoutError
            await self.fleet.clock.advance(0.125)
            self.free_due()
            waited += 0.125
        return await task

    async def advance(self, seconds: float, *, step: float = 1.0) -> None:
        await self.fleet.advance(seconds, step=step)
        self.free_due()

    def free_due(self) -> None:
        for engine in self.engines.values():
            engine.free_due()

    def view(self, plane: StatePlane) -> dict[str, Lease]:
        """The live leases, without what only their homes know."""
        page = self.wait(plane.manager.list(PageRequest(1000)))
        return {
            lease.name: replace(lease, claims=(), ttl=0.0, expire_time=None, reads=0)
            for lease in page.items
        }

    def stored(self) -> dict[str, LeaseState]:
        """The live leases that the store holds."""
        held = self.wait(self.fleet.shared.memory.table(LEASES).list())
        leases = [item.value for item in held.items]
        return {each.name: each.state for each in leases if each.state is not LeaseState.ENDED}

    def pick_lease(self, pick: int) -> Lease | None:
        leases = list(self.history.last.values())
        live = [each for each in leases if each.state is not LeaseState.ENDED]
        chosen = live if live and pick % 4 else leases
        return chosen[-1 - pick // 4 % len(chosen)] if chosen else None


ReplicaProperties.TestCase.settings = effort(max_examples=50, stateful_step_count=25)
TestReplicaProperties = ReplicaProperties.TestCase
