"""The rules of leases, under arbitrary histories of engines, holders, streams and clocks.

What engines hold and when they free it is their own count, on clocks that run a little faster or
slower than the plane's. What the plane has promised is counted beside it, from what went over the
wire. After every step both must agree with what the plane says.
"""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvplane_services.engine.model import Engine, EngineLoad
from kvplane_services.lease.model import EndReason
from kvplane_services.lease.reports import EngineReport
from tests.support.checked_plane import CheckedPlane
from tests.support.effort import effort
from tests.support.engine_model import EngineModel
from tests.support.lease_promises import Promise
from tests.support.state_values import full, retention_of, stock_engine

RATES = {"d0": 1.0, "d1": 15 / 16, "d2": 17 / 16}
STOCK = "s0"
SESSIONS = ("a", "b", "c")
# Binary fractions: sums of them are exact, so that deadlines are met to the moment.
JUMPS = (0.125, 0.5, 1.0, 5.0, 10.0, 15.0, 30.0, 35.0, 120.0, 300.0, 1000.0)

engines = st.sampled_from(sorted(RATES))
sessions = st.sampled_from(SESSIONS)
picks = st.integers(0, 30)
# Whether news goes out at once: most does.
soon = st.sampled_from([True, True, True, False])
token_errors = st.sampled_from([0, 0, 0, -1, 1])


class LeaseProperties(RuleBasedStateMachine):
    """Three engines that report, one that does not, three sessions, and one plane."""

    def __init__(self) -> None:
        super().__init__()
        self.plane = CheckedPlane()
        self.engines = {
            name: EngineModel(name, self.plane.clock, rate) for name, rate in RATES.items()
        }
        self.stock: Engine | None = None
        # Registrations that were replaced.
        self.replaced: list[Engine] = []
        self.turns = 0

    def teardown(self) -> None:
        self.plane.loop.close()

    # -- Engines -----------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        for engine in self.engines.values():
            self.plane.register(engine, ttl=300.0)
        self.register_stock(300.0)

    @rule(name=engines, ttl=st.sampled_from([0.0, 300.0]))
    def register(self, name: str, ttl: float) -> None:
        """An engine registers, for the first time or again, with what it holds."""
        engine = self.engines[name]
        if engine.registered is not None:
            self.replaced.append(engine.registered)
        engine.cut()
        self.plane.register(engine, ttl=ttl)

    @rule(ttl=st.sampled_from([0.0, 300.0]))
    def register_stock(self, ttl: float) -> None:
        """The plane's prober finds an engine, anew or again."""
        if self.stock is not None:
            self.replaced.append(self.stock)
        self.stock = self.plane.register_stock(stock_engine(STOCK), ttl=ttl)

    @rule(name=engines)
    def restart_engine(self, name: str) -> None:
        """A new process takes the engine's place."""
        engine = self.engines[name]
        if engine.registered is not None:
            self.replaced.append(engine.registered)
        engine.restart()
        self.plane.register(engine, ttl=300.0)

    @rule(name=engines, stale=st.booleans())
    def deregister(self, name: str, *, stale: bool) -> None:
        """An engine stops, or one that was replaced does."""
        engine = self.engines[name]
        if engine.registered is not None:
            self.plane.deregister(engine, stale=stale)

    @rule(
        name=engines,
        session=sessions,
        blocks=st.sampled_from([4, 4, 100, 200]),
        ttl=st.sampled_from([30.0, 30.0, 1.0, 60.0]),
        beats=soon,
    )
    def finish_turn(self, name: str, session: str, blocks: int, ttl: float, *, beats: bool) -> None:
        """A turn leaves a retention."""
        self.turns += 1
        self.engines[name].begin(f"r{self.turns}", session=session, blocks=blocks, ttl=ttl)
        self.beat_if(name, beats=beats)

    @rule(name=engines, pick=picks, said=st.booleans(), beats=soon)
    def break_retention(self, name: str, pick: int, *, said: bool, beats: bool) -> None:
        """An engine needs the memory, and says so or loses its stream over it."""
        engine = self.engines[name]
        if engine.held:
            retention_id = list(engine.held)[pick % len(engine.held)]
            if said:
                engine.free(retention_id, EndReason.RECLAIMED)
            else:
                engine.lose(retention_id)
            self.beat_if(name, beats=beats)

    @rule(name=engines, beats=soon)
    def free_released(self, name: str, *, beats: bool) -> None:
        """The readers of what was to be released are done."""
        self.engines[name].free_released()
        self.beat_if(name, beats=beats)

    @rule(name=engines, pick=picks, beats=soon)
    def read(self, name: str, pick: int, *, beats: bool) -> None:
        """A retention is read."""
        engine = self.engines[name]
        if engine.held:
            engine.read(list(engine.held)[pick % len(engine.held)])
            self.beat_if(name, beats=beats)

    @rule(
        name=engines,
        load=st.sampled_from(
            [
                EngineLoad(running_requests=1),
                EngineLoad(waiting_requests=1, used_blocks=500),
                EngineLoad(running_requests=1, waiting_requests=1, used_blocks=990),
            ]
        ),
        beats=soon,
    )
    def change_load(self, name: str, load: EngineLoad, *, beats: bool) -> None:
        """Requests come and go."""
        self.engines[name].load = load
        self.beat_if(name, beats=beats)

    # -- Streams -----------------------------------------------------------------------------

    @rule(name=engines)
    def send(self, name: str) -> None:
        """A frame starts on its way."""
        engine = self.engines[name]
        if engine.registered is not None and engine.frame is None:
            engine.send()

    @rule(name=engines)
    def arrive(self, name: str) -> None:
        """A frame arrives at the plane, which answers."""
        engine = self.engines[name]
        if engine.frame is not None and engine.frame.directives is None:
            self.plane.arrive(engine)

    @rule(name=engines)
    def hear(self, name: str) -> None:
        """The answer arrives at the engine."""
        engine = self.engines[name]
        if engine.frame is not None and engine.frame.directives is not None:
            engine.hear()

    @rule(name=engines)
    def beat(self, name: str) -> None:
        """Whatever is missing of a heartbeat happens at once."""
        engine = self.engines[name]
        if engine.registered is None:
            self.plane.register(engine, ttl=300.0)
        self.send(name)
        self.arrive(name)
        self.hear(name)

    @rule(name=engines)
    def cut(self, name: str) -> None:
        """A stream breaks, with what is on its way in either direction."""
        self.engines[name].cut()

    @precondition(lambda self: self.replaced)
    @rule(pick=picks, session=sessions)
    def arrive_late(self, pick: int, session: str) -> None:
        """A frame of a registration that was replaced arrives after all."""
        engine = self.replaced[pick % len(self.replaced)]
        reports = (full(), full(retention_of("late", session)), EngineReport())
        self.plane.arrive_late(engine, reports[pick % len(reports)])

    # -- Holders -----------------------------------------------------------------------------

    @rule(
        pick=picks,
        holder=st.sampled_from(["x", "y"]),
        off=token_errors,
        ttl=st.sampled_from([0.0, 1.0, 64.0, 512.0]),
        drop=st.booleans(),
    )
    def claim(self, pick: int, holder: str, off: int, ttl: float, *, drop: bool) -> None:
        """A holder claims a lease, or drops its claim."""
        lease = self.pick_lease(pick)
        if lease is not None:
            self.plane.claim(lease, holder, off=off, ttl=ttl, drop=drop)

    @rule(pick=picks, off=token_errors)
    def release(self, pick: int, off: int) -> None:
        """Somebody gives a lease up."""
        lease = self.pick_lease(pick)
        if lease is not None:
            self.plane.release(lease, off=off)

    @rule(
        session=sessions,
        number=st.integers(1, 3),
        ttl=st.sampled_from([1.0, 30.0, 480.0]),
        late=st.booleans(),
    )
    def grant_fixed(self, session: str, number: int, ttl: float, *, late: bool) -> None:
        """A gateway saw a handle of the engine with the stock connector, of late or long ago."""
        engine = self.stock
        if late:
            engine = next((each for each in self.replaced if each.engine_id == STOCK), None)
        if engine is not None and STOCK in self.plane.registrations:
            self.plane.grant_fixed(engine, f"f{session}{number}", session, ttl=ttl)

    # -- Time --------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from(JUMPS))
    def pass_time(self, seconds: float) -> None:
        """Time passes without a word from anybody."""
        over = self.plane.advance(seconds)
        for engine in self.engines.values():
            engine.free_due()
        for lease in over:
            if lease.engine_id in self.engines:
                held = self.engines[lease.engine_id].held
                assert lease.retention_id not in held, "ended early"

    @rule(steps=st.integers(1, 15), pick=picks)
    def live_on(self, steps: int, pick: int) -> None:
        """Time passes in beats."""
        names = sorted(self.engines)
        for _ in range(steps):
            self.pass_time(10.0)
            for name in names[pick % len(names) :]:
                self.beat(name)

    @rule()
    def restart_plane(self) -> None:
        """The plane loses its memory; engines notice, and register again when they do."""
        self.plane.restart()
        self.replaced.clear()
        self.stock = None
        for engine in self.engines.values():
            engine.cut()
            engine.free_due()

    @rule()
    def all_beat(self) -> None:
        """Every engine is heard: the plane is right about everything."""
        for name, engine in self.engines.items():
            self.beat(name)
            # Twice where the first one said to register.
            self.beat(name)
            leased = {each.retention_id for each in self.plane.promises.on_engine(name)}
            assert leased == set(engine.held)

    # -- What must hold ----------------------------------------------------------------------

    @invariant()
    def says_what_it_promised(self) -> None:
        """What can be read of every lease is what was promised."""
        self.plane.check()

    @invariant()
    def events_go_forward(self) -> None:
        """Followers of leases see each released and ended once."""
        self.plane.check_events()

    @invariant()
    def nothing_ends_early(self) -> None:
        """A lease that the engine knows is not over before the engine itself says so."""
        now = self.plane.now()
        for engine in self.engines.values():
            for held in engine.held.values():
                lease = self.plane.promises.find(engine.engine_id, held.retention_id)
                if lease is not None:
                    assert now + (held.until - engine.now()) / engine.rate <= lease.deadline

    def beat_if(self, name: str, *, beats: bool) -> None:
        if beats and self.engines[name].registered is not None:
            self.beat(name)

    def pick_lease(self, pick: int) -> Promise | None:
        leases = list(self.plane.promises.all.values())
        return leases[-1 - pick % len(leases)] if leases else None


LeaseProperties.TestCase.settings = effort(max_examples=100, stateful_step_count=50)
TestLeaseProperties = LeaseProperties.TestCase
