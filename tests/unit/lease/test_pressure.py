"""What the plane does when requests at an engine wait for blocks."""

from kvplane_services.engine.model import Engine, EngineLoad, KvLayout
from kvplane_services.lease.config import LeaseConfig
from kvplane_services.lease.model import EndReason, Lease, LeaseState
from kvplane_services.lease.ports import LeaseRenewal
from kvplane_services.lease.reports import Directive, EngineReport
from tests.support.state_plane import StatePlane, by_retention
from tests.support.state_values import engine_of, full, held, retention_of

CALM = EngineLoad(running_requests=1, used_blocks=90)
PRESSED = EngineLoad(running_requests=1, waiting_requests=1, used_blocks=95)


class Deployment:
    """An engine of 100 blocks whose retentions r0, r1, r2 were reported 1 s after each other."""

    def __init__(self) -> None:
        self.plane = StatePlane(leases=LeaseConfig(retention_budget=1.0))
        self.engine: Engine = engine_of(layout=KvLayout(block_size=16, total_blocks=100))
        self.leases: dict[str, Lease] = {}

    async def begin(self) -> None:
        self.engine = await self.plane.register(self.engine)
        await self.plane.report(self.engine, full())
        for number in range(3):
            report = held(retention_of(f"r{number}", str(number), blocks=8))
            self.leases[f"r{number}"] = await self.plane.held_lease(self.engine, report)
            await self.plane.clock.advance(1)

    async def beat(
        self, load: EngineLoad, *, after: float = 1.0, report: EngineReport | None = None
    ) -> dict[str, Directive]:
        await self.plane.clock.advance(after)
        beat = await self.plane.directory.heartbeat("d0", self.engine.epoch, load)
        assert beat.engine is not None
        return by_retention(await self.plane.manager.report(beat.engine, report or held()))

    async def claim(self, retention_id: str) -> None:
        lease = self.leases[retention_id]
        renewal = LeaseRenewal(lease.name, lease.fencing_token, 60.0)
        await self.plane.manager.renew("h", [renewal])

    def state(self, retention_id: str) -> LeaseState:
        return self.plane.manager.get(self.leases[retention_id].name).state


async def deployment() -> Deployment:
    made = Deployment()
    await made.begin()
    return made


async def test_under_pressure_nothing_is_renewed_claimed_or_not() -> None:
    """Leases end at the expiry that the engine has, and are renewed again once nobody waits."""
    one = await deployment()
    for name in one.leases:
        await one.claim(name)
    await one.beat(PRESSED)

    assert await one.beat(PRESSED, after=9.0) == {}
    assert await one.beat(PRESSED, after=9.0) == {}
    assert {name: each.renew for name, each in (await one.beat(CALM)).items()} == {
        "r0": 30.0,
        "r1": 30.0,
        "r2": 30.0,
    }


async def test_idle_leases_are_released_at_once_as_far_as_needed() -> None:
    """5 of 100 blocks are free and 10 are wanted: the longest idle lease makes up for it."""
    one = await deployment()
    await one.claim("r0")
    await one.beat(PRESSED)

    directives = await one.beat(PRESSED)

    assert {name: each.release for name, each in directives.items()} == {"r1": EndReason.RECLAIMED}
    assert one.state("r1") is LeaseState.RELEASING
    assert (one.state("r0"), one.state("r2")) == (LeaseState.ACTIVE, LeaseState.ACTIVE)


async def test_what_is_on_its_way_out_counts_as_free() -> None:
    """While a released lease waits for readers, no further one is released in its place."""
    one = await deployment()
    await one.beat(PRESSED)
    assert len(await one.beat(PRESSED)) == 1

    assert [await one.beat(PRESSED) for _ in range(5)] == [{}] * 5


async def test_a_lease_that_was_reclaimed_says_so() -> None:
    """Whatever the engine makes of the release, the reason is that memory was needed."""
    one = await deployment()
    await one.beat(PRESSED)
    await one.beat(PRESSED)

    await one.beat(CALM, report=EngineReport(ended=(("r0", EndReason.EXPIRED),)))

    ended = one.plane.manager.get(one.leases["r0"].name)
    assert ended.end_reason is EndReason.RECLAIMED


async def test_a_moment_is_no_pressure() -> None:
    """A request that has just come, or is reading, waits for a moment: nothing is given up."""
    one = await deployment()

    assert await one.beat(PRESSED) == {}
    assert await one.beat(CALM) == {}
    assert await one.beat(PRESSED) == {}
    assert await one.beat(PRESSED, after=0.5) == {}
    assert len(await one.beat(PRESSED, after=0.5)) == 1


async def test_a_new_lease_is_named_even_under_pressure() -> None:
    """The engine hears the name of a lease that it could not hear of before."""
    one = await deployment()
    for name in one.leases:
        await one.claim(name)
    await one.beat(PRESSED)

    directives = await one.beat(PRESSED, report=held(retention_of("r3", "3", blocks=8)))

    assert directives["r3"].lease


async def test_another_engines_pressure_is_its_own() -> None:
    """Leases of an engine where nobody waits are renewed as ever."""
    one = await deployment()
    other = await one.plane.register(engine_of("d1"))
    await one.plane.report(other, full(retention_of("x", "x")))
    await one.beat(PRESSED)
    await one.beat(PRESSED, after=10.0)

    answer = await one.plane.report(other, held())

    assert [each.renew for each in answer.directives] == [30.0]


async def test_a_slow_read_is_no_pressure() -> None:
    """Nothing runs and one request waits, but it has blocks: leases are renewed as ever."""
    one = await deployment()
    for name in one.leases:
        await one.claim(name)
    reading = EngineLoad(waiting_requests=1, used_blocks=30, retained_blocks=24, retentions=3)
    await one.beat(reading)

    directives = await one.beat(reading, after=9.0)

    assert {name: each.renew for name, each in directives.items()} == {
        "r0": 30.0,
        "r1": 30.0,
        "r2": 30.0,
    }


async def test_a_request_that_retentions_alone_keep_out_is_pressure() -> None:
    """It needs more than is free, however much that is: nothing is renewed."""
    one = await deployment()
    for name in one.leases:
        await one.claim(name)
    kept_out = EngineLoad(waiting_requests=1, used_blocks=24, retained_blocks=24, retentions=3)
    await one.beat(kept_out)

    assert await one.beat(kept_out, after=9.0) == {}
