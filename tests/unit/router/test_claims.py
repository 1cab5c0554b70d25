import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from kvplane_services.errors import Unavailable
from kvplane_services.lease.model import RenewalOutcome
from kvplane_services.lease.ports import LeaseRenewal
from kvplane_services.router.claims import LeaseClaims
from tests.support.clock import FakeClock


@dataclass
class RecordingControl:
    """A lease manager that notes frames; `answer` is what it says to each renewal."""

    frames: list[list[LeaseRenewal]] = field(default_factory=list)
    answer: RenewalOutcome = RenewalOutcome.RENEWED
    failing: bool = False

    async def renew(
        self, holder: str, renewals: Sequence[LeaseRenewal]
    ) -> Sequence[RenewalOutcome]:
        assert holder == "routers/r"
        self.frames.append(list(renewals))
        if self.failing:
            raise Unavailable("no lease manager", retry_after=1.0)
        return [self.answer] * len(renewals)

    async def release(self, lease: str, fencing_token: int) -> None:
        raise AssertionError("claims release nothing")


@asynccontextmanager
async def running(
    control: RecordingControl, clock: FakeClock, *, limit: int = 10_000
) -> AsyncIterator[LeaseClaims]:
    claims = LeaseClaims(
        control=control, clock=clock, holder="routers/r", ttl=30, longest=60, limit=limit
    )
    async with asyncio.TaskGroup() as tasks:
        loop = tasks.create_task(claims.run())
        await clock.wait_for_sleepers()
        yield claims
        loop.cancel()


async def test_claim_at_once_then_each_interval_then_dropped() -> None:
    """A claim is sent at once, repeated every third of its TTL, and dropped at the end."""
    control, clock = RecordingControl(), FakeClock()
    async with running(control, clock) as claims:
        claims.claim("leases/a", 7, turn="t1")
        await clock.advance(0)
        assert control.frames == [[LeaseRenewal("leases/a", 7, ttl=30)]]
        await clock.advance(9.9)
        assert len(control.frames) == 1
        await clock.advance(0.1)
        assert control.frames[1:] == [[LeaseRenewal("leases/a", 7, ttl=30)]]
        claims.drop("leases/a", turn="t1")
        await clock.advance(30)
        assert control.frames[2:] == [[LeaseRenewal("leases/a", 7, drop=True)]]


async def test_lease_of_two_turns_is_dropped_with_the_last() -> None:
    """Turns that share a lease share its claim."""
    control, clock = RecordingControl(), FakeClock()
    async with running(control, clock) as claims:
        claims.claim("leases/a", 7, turn="t1")
        claims.claim("leases/a", 7, turn="t2")
        await clock.advance(0)
        claims.drop("leases/a", turn="t1")
        claims.drop("leases/a", turn="t1")
        await clock.advance(0)
        assert len(control.frames) == 1
        claims.drop("leases/a", turn="t2")
        await clock.advance(0)
        assert control.frames[-1] == [LeaseRenewal("leases/a", 7, drop=True)]
        assert len(claims) == 0


async def test_a_turn_does_not_claim_for_ever() -> None:
    """A turn whose end is not reported loses its claim; later turns on the lease keep theirs."""
    control, clock = RecordingControl(), FakeClock()
    async with running(control, clock) as claims:
        claims.claim("leases/a", 7, turn="t1")
        claims.claim("leases/b", 8, turn="t2")
        await clock.advance(50)
        claims.claim("leases/b", 8, turn="t3")
        await clock.advance(10)
        assert control.frames[-1] == [
            LeaseRenewal("leases/a", 7, drop=True),
            LeaseRenewal("leases/b", 8, ttl=30),
        ]
        await clock.advance(50)
        assert control.frames[-1] == [LeaseRenewal("leases/b", 8, drop=True)]
        assert len(claims) == 0


async def test_failure_is_retried() -> None:
    """What could not be sent, claims and drops, is sent again with the next interval."""
    control, clock = RecordingControl(failing=True), FakeClock()
    async with running(control, clock) as claims:
        claims.claim("leases/a", 1, turn="t1")
        claims.claim("leases/b", 2, turn="t1")
        await clock.advance(0)
        claims.drop("leases/b", turn="t1")
        await clock.advance(0)
        control.failing = False
        control.frames.clear()
        await clock.advance(10)
        assert control.frames == [
            [LeaseRenewal("leases/b", 2, drop=True), LeaseRenewal("leases/a", 1, ttl=30)]
        ]
        await clock.advance(10)
        assert control.frames[1:] == [[LeaseRenewal("leases/a", 1, ttl=30)]]


async def test_lease_that_is_over_is_given_up() -> None:
    """A lease that the manager does not know is not claimed again."""
    control, clock = RecordingControl(answer=RenewalOutcome.NOT_FOUND), FakeClock()
    async with running(control, clock) as claims:
        claims.claim("leases/a", 1, turn="t1")
        await clock.advance(0)
        assert len(claims) == 0
        claims.drop("leases/a", turn="t1")
        await clock.advance(60)
        assert len(control.frames) == 1


async def test_undecided_renewal_is_repeated() -> None:
    """UNAVAILABLE for one lease is tried again with the next interval."""
    control, clock = RecordingControl(answer=RenewalOutcome.UNAVAILABLE), FakeClock()
    async with running(control, clock) as claims:
        claims.claim("leases/a", 1, turn="t1")
        await clock.advance(10)
        assert len(control.frames) == 2
        assert len(claims) == 1


async def test_frames_hold_at_most_1024_renewals() -> None:
    """Many claims are sent in frames of the size that the manager takes."""
    control, clock = RecordingControl(), FakeClock()
    async with running(control, clock) as claims:
        for number in range(1500):
            claims.claim(f"leases/{number}", 1, turn="t1")
        await clock.advance(0)
        assert [len(frame) for frame in control.frames] == [1024, 476]


async def test_claims_are_bounded() -> None:
    """Beyond its limit a turn goes without a claim."""
    control, clock = RecordingControl(), FakeClock()
    async with running(control, clock, limit=1) as claims:
        claims.claim("leases/a", 1, turn="t1")
        claims.claim("leases/b", 1, turn="t1")
        assert len(claims) == 1
        claims.drop("leases/b", turn="t1")
        assert len(claims) == 1
