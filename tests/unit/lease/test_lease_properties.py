"""The rules of leases, under arbitrary histories of engines, holders, streams and clocks.

What engines hold and when they free it is their own count, on clocks that run a little faster or
slower than the plane's. What the plane has promised is counted beside it, from what went over the
wire. After every step both must agree with what the plane says.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvplane_services.engine.model import Engine, EngineLoad
from kvplane_services.lease.model import EndReason
from kvplane_services.lease.reports import EngineReport
from tests.support.checked_answers import CONFIG
from tests.support.checked_plane import CheckedPlane
from tests.support.effort import TIMEOUT, effort
from tests.support.engine_model import EngineModel
from tests.support.state_values import full, retention_of, stock_engine

pytestmark = TIMEOUT

T = TypeVar("T")

RATES = {"d0": 1.0, "d1": 15 / 16, "d2": 17 / 16}
STOCK = "s0"
# Binary fractions: sums of them are exact, so that deadlines are met to the moment.
JUMPS = (0.125, 1.0, 5.0, 5.0, 10.0, 10.0, 15.0, 30.0, 35.0, 35.0, 120.0, 300.0, 1000.0)
LOADS = (
    EngineLoad(running_requests=1),
    EngineLoad(waiting_requests=1, used_blocks=500, retained_blocks=500),
    EngineLoad(waiting_requests=1, used_blocks=500),
    EngineLoad(running_requests=1, waiting_requests=1, used_blocks=990),
)

engines = st.sampled_from(sorted(RATES))
sessions = st.sampled_from(["a", "b", "c"])
picks = st.integers(0, 30)
# Whether news goes out at once: most does.
soon = st.sampled_from([True, True, True, False])
token_errors = st.sampled_from([0, 0, 0, 0, -1, 1])
turns = st.tuples(sessions, st.sampled_from([4, 4, 100, 200]), st.sampled_from([30.0, 1.0, 60.0]))


class LeaseProperties(RuleBasedStateMachine):
    """Three engines that report, one that does not, three sessions, and one plane.

    Few rules, each of which does one of several things: what happens most must be tried most.
    """

    def __init__(self) -> None:
        super().__init__()
        self.plane = CheckedPlane()
        self.loop = asyncio.new_event_loop()
        self.engines = {
            name: EngineModel(name, self.plane.clock, rate) for name, rate in RATES.items()
        }
        self.stock: Engine | None = None
        # Registrations that were replaced.
        self.replaced: list[Engine] = []
        self.turns = 0

    def teardown(self) -> None:
        self.loop.close()

    @initialize()
    def begin(self) -> None:
        for engine in self.engines.values():
            self.wait(self.plane.register(engine, ttl=300.0))
        self.register_stock()

    # -- What engines do ---------------------------------------------------------------------

    @rule(name=engines, left=st.lists(turns, min_size=1, max_size=3), beats=soon)
    def finish_turns(self, name: str, left: list[tuple[str, int, float]], *, beats: bool) -> None:
        """Turns leave retentions."""
        for session, blocks, ttl in left:
            self.turns += 1
            self.engines[name].begin(f"r{self.turns}", session=session, blocks=blocks, ttl=ttl)
        self.beat_if(name, beats=beats)

    @rule(
        name=engines,
        pick=picks,
        what=st.sampled_from(["read", "free", "lose", "free released"]),
        beats=soon,
    )
    def change_retention(self, name: str, pick: int, what: str, *, beats: bool) -> None:
        """A retention is read, or freed for memory's sake or when its last reader is done."""
        engine = self.engines[name]
        if what == "free released":
            engine.free_released()
        elif engine.held:
            retention_id = list(engine.held)[pick % len(engine.held)]
            match what:
                case "read":
                    engine.read(retention_id)
                case "free":
                    engine.free(retention_id, EndReason.RECLAIMED)
                case _:
                    engine.lose(retention_id)
        self.beat_if(name, beats=beats)

    @rule(name=engines, load=st.sampled_from(LOADS), beats=soon, stays=st.booleans())
    def change_load(self, name: str, load: EngineLoad, *, beats: bool, stays: bool) -> None:
        """Requests come and go, or wait for a while."""
        self.engines[name].load = load
        self.beat_if(name, beats=beats)
        if stays:
            self.pass_time(1.0)
            self.beat_if(name, beats=beats)

    @rule(
        name=engines,
        pick=picks,
        session=sessions,
        what=st.sampled_from(["register", "restart", "deregister", "stock", "late"]),
    )
    def change_engine(self, name: str, pick: int, session: str, what: str) -> None:
        """An engine registers, restarts, or leaves; a frame of an earlier registration arrives."""
        engine = self.engines[name]
        match what:
            case "register":
                self.register(engine, ttl=300.0 if pick % 2 else 0.0)
            case "restart":
                self.replace(engine.registered)
                engine.restart()
                self.register(engine, ttl=300.0)
            case "deregister" if engine.registered is not None:
                self.wait(self.plane.deregister(engine, stale=pick % 2 == 1))
            case "stock":
                self.register_stock()
            case "late" if self.replaced:
                reports = (full(), full(retention_of("late", session)), EngineReport())
                replaced = self.replaced[pick % len(self.replaced)]
                self.wait(self.plane.arrive_late(replaced, reports[pick % len(reports)]))

    # -- Streams -----------------------------------------------------------------------------

    @rule(name=engines, step=st.sampled_from(["send", "send", "arrive", "arrive", "hear", "cut"]))
    def step_stream(self, name: str, step: str) -> None:
        """A frame goes on its way, arrives and is answered, is heard, or all is lost."""
        if step == "cut":
            self.engines[name].cut()
        else:
            self.wait(self.steps(self.engines[name], step))

    @rule(name=engines)
    def beat(self, name: str) -> None:
        """Whatever is missing of a heartbeat happens at once."""
        if self.engines[name].registered is None:
            self.register(self.engines[name], ttl=300.0)
        self.wait(self.steps(self.engines[name], "send", "arrive", "hear"))

    @rule()
    def all_beat(self) -> None:
        """Every engine is heard: the plane knows of what each holds, and of nothing else."""
        for name, engine in self.engines.items():
            self.beat(name)
            # Again, where the answer was to register.
            self.beat(name)
            leased = {each.retention_id for each in self.plane.promises.on_engine(name)}
            assert leased == set(engine.held)

    # -- Holders -----------------------------------------------------------------------------

    @rule(
        pick=picks,
        holder=st.sampled_from(["x", "y"]),
        off=token_errors,
        ttls=st.lists(st.sampled_from([0.0, 1.0, 64.0, 512.0]), min_size=1, max_size=3),
        what=st.sampled_from(["claim", "claim", "claim", "drop", "release"]),
    )
    def use_lease(self, pick: int, holder: str, off: int, ttls: list[float], what: str) -> None:
        """Somebody claims a lease, perhaps again, drops a claim or gives the lease up."""
        live = list(self.plane.promises.live())
        leases = live if live and pick % 4 else list(self.plane.promises.all.values())
        if not leases:
            return
        lease = leases[-1 - pick // 4 % len(leases)]
        if what == "release":
            self.wait(self.plane.release(lease, off=off))
            return
        for ttl in ttls:
            self.plane.claim(lease, holder, off=off, ttl=ttl, drop=what == "drop")

    @rule(
        name=engines,
        session=sessions,
        held=st.lists(st.sampled_from(["x", "y"]), min_size=1, max_size=2, unique=True),
        dropped=st.lists(st.sampled_from(["x", "y"]), max_size=1),
        steps=st.integers(0, 16),
    )
    def hold(
        self, name: str, session: str, held: list[str], dropped: list[str], steps: int
    ) -> None:
        """A turn's lease is claimed from the start, for as long as its engine lives on."""
        self.finish_turns(name, [(session, 4, CONFIG.ttl)], beats=True)
        lease = self.plane.promises.active(session)
        if lease is None:
            return
        for holder in held:
            self.plane.claim(lease, holder, off=0, ttl=512.0, drop=False)
        for holder in dropped:
            self.plane.claim(lease, holder, off=0, ttl=0.0, drop=True)
        for _ in range(steps):
            self.pass_time(10.0)
            self.beat_if(name, beats=True)

    @rule(
        session=sessions,
        number=st.integers(1, 3),
        ttl=st.sampled_from([1.0, 30.0, 480.0]),
        late=st.sampled_from([False, False, True]),
    )
    def grant_fixed(self, session: str, number: int, ttl: float, *, late: bool) -> None:
        """A gateway saw a handle of the engine with the stock connector, of late or long ago."""
        engine = self.stock
        if late:
            engine = next((each for each in self.replaced if each.engine_id == STOCK), None)
        if engine is not None and STOCK in self.plane.registrations:
            self.wait(self.plane.grant_fixed(engine, f"f{session}{number}", session, ttl=ttl))

    # -- Time --------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from(JUMPS))
    def pass_time(self, seconds: float) -> None:
        """Time passes without a word from anybody."""
        over = self.wait(self.plane.advance(seconds))
        for engine in self.engines.values():
            engine.free_due()
        for lease in over:
            if lease.engine_id in self.engines:
                held = self.engines[lease.engine_id].held
                assert lease.retention_id not in held, "ended early"

    @rule(pick=picks, before=st.sampled_from([0.0, 0.125]))
    def meet_deadline(self, pick: int, before: float) -> None:
        """Time passes until a lease's deadline, or a moment before."""
        times = sorted({lease.deadline for lease in self.plane.promises.live()})
        if times:
            seconds = times[pick % len(times)] - self.plane.now() - before
            self.pass_time(max(seconds, 0.0))

    @rule(steps=st.integers(1, 13), pick=picks)
    def live_on(self, steps: int, pick: int) -> None:
        """Time passes in beats, of some engines or all."""
        for _ in range(steps):
            self.pass_time(10.0)
            for name in sorted(self.engines)[pick % len(self.engines) :]:
                self.beat(name)

    @rule(really=st.sampled_from([False, False, True]))
    def restart_plane(self, *, really: bool) -> None:
        """The plane loses its memory; engines notice, and register again when they do."""
        if not really:
            return
        self.wait(self.plane.restart())
        self.replaced.clear()
        self.stock = None
        for engine in self.engines.values():
            engine.cut()
            engine.free_due()

    # -- What must hold ----------------------------------------------------------------------

    @invariant()
    def says_what_it_promised(self) -> None:
        """What can be read of every lease, and what followers saw of it, is what was promised."""
        self.wait(self.plane.check())

    @invariant()
    def nothing_ends_early(self) -> None:
        """A lease that the engine knows is not over before the engine itself says so."""
        now = self.plane.now()
        for engine in self.engines.values():
            for held in engine.held.values():
                lease = self.plane.promises.find(engine.engine_id, held.retention_id)
                if lease is not None:
                    assert now + (held.until - engine.now()) / engine.rate <= lease.deadline

    # -- Steps -------------------------------------------------------------------------------

    def beat_if(self, name: str, *, beats: bool) -> None:
        if beats and self.engines[name].registered is not None:
            self.beat(name)

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coroutine)

    async def steps(self, engine: EngineModel, *steps: str) -> None:
        """Those of the steps that can be made now."""
        for step in steps:
            answered = engine.frame is not None and engine.frame.directives is not None
            if step == "send" and engine.registered is not None and engine.frame is None:
                engine.send()
            elif step == "arrive" and engine.frame is not None and not answered:
                await self.plane.arrive(engine)
            elif step == "hear" and answered:
                engine.hear()

    def register(self, engine: EngineModel, *, ttl: float) -> None:
        self.replace(engine.registered)
        engine.cut()
        self.wait(self.plane.register(engine, ttl=ttl))

    def register_stock(self) -> None:
        self.replace(self.stock)
        self.stock = self.wait(self.plane.register_stock(stock_engine(STOCK), ttl=300.0))

    def replace(self, engine: Engine | None) -> None:
        if engine is not None:
            self.replaced.append(engine)


LeaseProperties.TestCase.settings = effort(max_examples=60, stateful_step_count=50)
TestLeaseProperties = LeaseProperties.TestCase
