"""The rules of a holder's keeper, on virtual time and without a network."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kvplane.api.lease.v1 import lease_pb2
from kvplane.client import KeeperTiming, KeptLease, LeaseKeeper, LostReason
from kvplane.client.engine_wire import duration_of
from kvplane.client.errors import UnavailableError
from kvplane.client.frames import StreamEnded
from tests.support.clock import FakeClock
from tests.support.frame_streams import Silence, TransportDouble

RENEWED = lease_pb2.RENEWAL_OUTCOME_RENEWED
Frame = lease_pb2.RenewLeasesRequest


class Manager:
    """Renews everything for 30 s, next frame after 10 s, unless told otherwise."""

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}
        self.before: Callable[[Frame], None] = lambda _: None
        self.transport = TransportDouble(self._answer)

    @property
    def frames(self) -> list[Frame]:
        return self.transport.frames

    def _answer(self, frame: Frame) -> Any:
        self.before(frame)
        return lease_pb2.RenewLeasesResponse(
            sequence=frame.sequence,
            results=[
                lease_pb2.LeaseRenewalResult(
                    name=one.name,
                    outcome=lease_pb2.RenewalOutcome.ValueType(
                        self.outcomes.get(one.name, RENEWED)
                    ),
                    ttl=duration_of(30),
                )
                for one in frame.renewals
            ],
            renew_interval=duration_of(10),
        )


class Kept:
    """A keeper, its manager and its clock."""

    def __init__(self) -> None:
        self.manager, self.clock = Manager(), FakeClock()
        self.lost: list[KeptLease] = []
        self.keeper = LeaseKeeper(
            target="127.0.0.1:1",
            holder="agents/7",
            on_lost=self.lost.append,
            timing=KeeperTiming(margin=1.0, unanswered_ttl=10.0, first_backoff=1.0),
            clock=self.clock,
            transport=self.manager.transport,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.keeper.run())
            await self.clock.advance(0)
            try:
                yield
            finally:
                await self.keeper.aclose()


def names(frame: Frame) -> list[tuple[str, bool]]:
    return [(one.name, one.drop) for one in frame.renewals]


async def test_one_stream_renews_all_leases() -> None:
    """All leases of a holder go in one frame, on one stream, when the manager says so."""
    it = Kept()
    it.keeper.keep("a", 1)
    it.keeper.keep("leases/b", 2, ttl=60)
    async with it.running():
        await it.clock.advance(9.9)
        assert len(it.manager.frames) == 1
        await it.clock.advance(0.2)
        assert len(it.manager.frames) == 2
    frame = it.manager.frames[0]
    assert frame.holder == "agents/7"
    assert [(one.name, one.fencing_token, one.ttl.seconds) for one in frame.renewals] == [
        ("leases/a", 1, 0),
        ("leases/b", 2, 60),
    ]
    assert len(it.manager.transport.streams) == 2  # The second says goodbye.


async def test_deadline_counts_from_when_the_frame_was_sent() -> None:
    """A late answer does not lengthen a lease, and the margin shortens it."""
    it = Kept()

    def late(_: Frame) -> None:
        it.clock._now += 3.0

    it.manager.before = late
    kept = it.keeper.keep("a", 1)
    async with it.running():
        assert kept.deadline == 1000.0 + 30.0 - 1.0


async def test_silence_loses_the_lease_at_its_deadline() -> None:
    """A holder without answers gives up before the manager does, once."""
    it = Kept()
    kept = it.keeper.keep("a", 1)
    async with it.running():

        def silent(_: Frame) -> None:
            raise Silence

        it.manager.before = silent
        await it.clock.advance(28.9)
        assert it.lost == []
        await it.clock.advance(0.2)
        assert it.lost == [kept]
        assert kept.lost is LostReason.DEADLINE
        it.manager.before = lambda _: None
        await it.clock.advance(60)
    assert it.lost == [kept]


async def test_lease_that_was_never_renewed_is_lost_soon() -> None:
    """A lease whose first renewal is never answered may be used for a short while only."""
    it = Kept()
    kept = it.keeper.keep("a", 1)

    def away(_: Frame) -> None:
        raise UnavailableError("away", code="UNAVAILABLE")

    it.manager.before = away
    async with it.running():
        for _ in range(9):
            await it.clock.advance(1)
        assert it.lost == [kept]


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (lease_pb2.RENEWAL_OUTCOME_NOT_FOUND, LostReason.NOT_FOUND),
        (lease_pb2.RENEWAL_OUTCOME_FENCED, LostReason.FENCED),
        (99, LostReason.NOT_FOUND),
    ],
)
async def test_refused_lease_is_lost_at_once(outcome: int, reason: LostReason) -> None:
    """NOT_FOUND, FENCED and what this version does not know end a claim; others go on."""
    it = Kept()
    it.manager.outcomes["leases/a"] = outcome
    kept = it.keeper.keep("a", 1)
    other = it.keeper.keep("b", 2)
    async with it.running():
        assert it.lost == [kept]
        assert kept.lost is reason
        assert it.keeper.kept == (other,)
        await it.clock.advance(10)
        assert names(it.manager.frames[-1]) == [("leases/b", False)]


async def test_unavailable_is_tried_again_until_the_deadline() -> None:
    """A manager that could not decide costs nothing as long as it decides in time."""
    it = Kept()
    kept = it.keeper.keep("a", 1)
    async with it.running():
        it.manager.outcomes["leases/a"] = lease_pb2.RENEWAL_OUTCOME_UNAVAILABLE
        await it.clock.advance(28)
        # From the first such answer on it is asked more often than every ten seconds.
        assert len(it.manager.frames) > 6
        it.manager.outcomes.clear()
        await it.clock.advance(4)
        assert kept.lost is None
        it.manager.outcomes["leases/a"] = lease_pb2.RENEWAL_OUTCOME_UNAVAILABLE
        await it.clock.advance(40)
        assert kept.lost is LostReason.DEADLINE


async def test_drop_gives_the_claim_up() -> None:
    """A dropped lease is told to the manager once, and not renewed any more."""
    it = Kept()
    kept = it.keeper.keep("a", 1)
    async with it.running():
        it.keeper.drop(kept)
        await it.clock.advance(0)
        assert names(it.manager.frames[1]) == [("leases/a", True)]
        await it.clock.advance(60)
        assert len(it.manager.frames) == 2
    assert it.lost == []


async def test_close_drops_and_orphan_leaves() -> None:
    """Closing gives all claims up; orphaning says nothing and lets them lapse."""
    closed = Kept()
    closed.keeper.keep("a", 1)
    async with closed.running():
        pass
    assert names(closed.manager.frames[-1]) == [("leases/a", True)]
    orphaned = Kept()
    orphaned.keeper.keep("a", 1)
    async with orphaned.running():
        await orphaned.keeper.aorphan()
    assert [names(frame) for frame in orphaned.manager.frames] == [[("leases/a", False)]]
    assert orphaned.manager.transport.closed


async def test_single_lease_can_be_orphaned() -> None:
    """An orphaned lease is neither renewed nor dropped nor reported as lost."""
    it = Kept()
    kept = it.keeper.keep("a", 1)
    async with it.running():
        it.keeper.orphan(kept)
        await it.clock.advance(60)
    assert len(it.manager.frames) == 1
    assert it.lost == []


async def test_newer_grant_replaces_the_older() -> None:
    """Keeping a lease again under another token forgets the first claim without a word."""
    it = Kept()
    older = it.keeper.keep("a", 1)
    newer = it.keeper.keep("a", 2)
    it.keeper.drop(older)
    async with it.running():
        assert it.keeper.kept == (newer,)
        assert [one.fencing_token for one in it.manager.frames[0].renewals] == [2]


async def test_frames_are_bounded() -> None:
    """No frame holds more renewals than the manager takes."""
    it = Kept()
    for number in range(1025):
        it.keeper.keep(str(number), number)
    async with it.running():
        assert [len(frame.renewals) for frame in it.manager.frames] == [1024, 1]


async def test_cut_stream_is_opened_again() -> None:
    """A stream that ends is replaced after a wait, and no lease is lost by it."""
    it = Kept()
    it.keeper.keep("a", 1)
    async with it.running():

        def cut(_: Frame) -> None:
            it.manager.before = lambda _: None
            raise UnavailableError("cut", code="UNAVAILABLE")

        it.manager.before = cut
        await it.clock.advance(10)
        await it.clock.advance(1)
        assert len(it.manager.frames) == 3
    assert it.lost == []


def test_margin_beyond_the_duration_is_refused() -> None:
    """A margin that leaves nothing is a mistake."""
    with pytest.raises(ValueError):
        KeeperTiming(margin=10.0, unanswered_ttl=10.0)
    with pytest.raises(ValueError, match="durations"):
        KeeperTiming(answer_timeout=0)


async def test_keeper_goes_on_at_another_replica() -> None:
    """Whether its replica stops or falls silent: claims are renewed elsewhere, in time."""
    it = Kept()
    kept = it.keeper.keep("a", 1)
    trouble: list[Exception] = [StreamEnded(), Silence()]

    def fail(_: Frame) -> None:
        if trouble:
            raise trouble.pop(0)

    it.manager.before = fail
    async with it.running():
        await it.clock.advance(8.5)
        assert kept.lost is None
        assert it.manager.transport.left == [False, True]
        assert kept.deadline > it.clock.now() + 15


async def test_end_of_the_stream_is_noticed_at_once() -> None:
    """A keeper whose stream is over does not wait for the next renewal to find out."""
    it = Kept()
    it.keeper.keep("a", 1)
    async with it.running():
        ends = [StreamEnded()]

        def end_once(_: Frame) -> None:
            if ends:
                raise ends.pop()

        it.manager.before = end_once
        it.manager.transport.streams[-1].end()
        await it.clock.advance(0)
        await it.clock.advance(1)
        assert len(it.manager.transport.streams) == 2
        assert len(it.manager.frames) == 3


async def test_claims_are_dropped_at_another_replica() -> None:
    """A keeper that closes while its replica is away drops its claims elsewhere."""
    it = Kept()
    it.keeper.keep("a", 1)

    def away(_: Frame) -> None:
        raise UnavailableError("away", code="UNAVAILABLE")

    async with it.running():
        it.manager.before = away
        it.manager.transport.on_leave = lambda: setattr(it.manager, "before", lambda _: None)
    assert names(it.manager.frames[-1]) == [("leases/a", True)]
