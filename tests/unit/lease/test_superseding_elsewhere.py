"""Of a session's leases one is active, on whatever engines and at whatever homes."""

import asyncio
import random

import pytest

from kvplane_services.engine.model import Engine
from kvplane_services.lease.model import EndReason, Lease, LeaseState
from kvplane_services.lease.reports import EngineReport
from tests.support.lease_fleet import LeaseFleet, told, written
from tests.support.state_plane import by_retention
from tests.support.state_values import engine_of, full, held, retention_of


async def pair(fleet: LeaseFleet) -> tuple[Engine, Engine]:
    """An engine at the first replica, and one at the second."""
    first, second = (
        await fleet.register(0, engine_of("d0")),
        await fleet.register(1, engine_of("d1")),
    )
    await fleet.report(0, first, full())
    await fleet.report(1, second, full())
    return first, second


async def test_a_newer_turn_elsewhere_supersedes(fleet: LeaseFleet) -> None:
    """The older lease is released at its engine by its own home, exactly once."""
    first, second = await pair(fleet)
    async with fleet.recorded() as events:
        await fleet.report(0, first, held(retention_of("r1")))
        await fleet.report(1, second, held(retention_of("r2")))
        answer = by_retention(await fleet.report(0, first, held()))
        assert (await fleet.report(0, first, held())).directives == ()
        await fleet.report(0, first, EngineReport(ended=(("r1", EndReason.RELEASED),)))

    assert answer["r1"].release is EndReason.SUPERSEDED
    assert written(events) == [
        ("r1", LeaseState.ACTIVE),
        ("r2", LeaseState.ACTIVE),
        ("r1", LeaseState.RELEASING),
        ("r1", LeaseState.ENDED),
    ]
    ended = fleet.planes[2].manager.get(answer["r1"].lease)
    assert ended.end_reason is EndReason.SUPERSEDED


async def test_two_replicas_grant_at_once(fleet: LeaseFleet) -> None:
    """The larger token stays, and all replicas agree on it."""
    first, second = await pair(fleet)

    answers = await asyncio.gather(
        fleet.planes[0].report(first, held(retention_of("r1"))),
        fleet.planes[1].report(second, held(retention_of("r2"))),
    )
    await fleet.settle()

    older, newer = sorted(
        (answer.directives[0] for answer in answers), key=lambda each: each.fencing_token
    )
    assert older.fencing_token < newer.fencing_token
    for plane in fleet.planes:
        assert plane.manager.get(older.lease).state is LeaseState.RELEASING
        assert plane.manager.get(newer.lease).state is LeaseState.ACTIVE


async def test_a_lease_of_an_earlier_life_is_born_superseded(fleet: LeaseFleet) -> None:
    """One that an engine brings along is older than what another granted meanwhile."""
    first, second = await pair(fleet)
    (newer,) = (await fleet.report(1, second, held(retention_of("r2")))).directives
    old = retention_of("r1", lease="leases/old", fencing_token=newer.fencing_token - 1)

    (answer,) = (await fleet.report(0, first, held(old))).directives

    assert answer.release is EndReason.SUPERSEDED
    assert fleet.planes[2].manager.get(newer.lease).state is LeaseState.ACTIVE


async def test_a_grant_is_newer_than_one_from_a_clock_that_runs_ahead(fleet: LeaseFleet) -> None:
    """Also at another replica than the one that took that lease up."""
    first, second = await pair(fleet)
    ahead = await fleet.shared.memory.sequence("tokens").next() + 3600 * 1_000_000
    old = retention_of("r1", lease="leases/old", fencing_token=ahead)
    await fleet.report(0, first, held(old))

    (newer,) = (await fleet.report(1, second, held(retention_of("r2")))).directives

    assert newer.fencing_token > ahead
    assert fleet.planes[2].manager.get("leases/old").state is LeaseState.RELEASING


async def test_superseded_while_cut_off(fleet: LeaseFleet) -> None:
    """A home that could not hear of the newer lease releases its own one as soon as it does."""
    first, second = await pair(fleet)
    (older,) = (await fleet.report(0, first, held(retention_of("r1")))).directives
    fleet.stores[0].cut()
    await fleet.report(1, second, held(retention_of("r2")))
    assert (await fleet.planes[0].manager.report(first, held())).directives == ()

    fleet.stores[0].heal()
    await fleet.advance(5)

    (directive,) = (await fleet.report(0, first, held())).directives
    assert (directive.lease, directive.release) == (older.lease, EndReason.SUPERSEDED)


async def test_superseded_while_moving(fleet: LeaseFleet) -> None:
    """A home that died before it released an older lease leaves that to the next one."""
    first, second = await pair(fleet)
    (older,) = (await fleet.report(0, first, held(retention_of("r1")))).directives
    fleet.stores[0].cut()
    await fleet.report(1, second, held(retention_of("r2")))

    known = retention_of("r1", lease=older.lease, fencing_token=older.fencing_token)
    (directive,) = (await fleet.report(2, first, full(known))).directives

    assert directive.release is EndReason.SUPERSEDED
    assert fleet.planes[1].manager.get(older.lease).state is LeaseState.RELEASING


class Crowd:
    """Three engines whose streams, turns and holders come to any replica, in any order."""

    def __init__(self, fleet: LeaseFleet, seed: int) -> None:
        self.fleet = fleet
        self.picks = random.Random(seed)
        self.engines: list[Engine] = []
        self.at = [0, 0, 0]
        # What each engine holds, and the lease that it knows of it.
        self.held: list[dict[str, Lease | None]] = [{}, {}, {}]
        self.turns = 0

    async def begin(self) -> None:
        for number in range(3):
            self.engines.append(await self.fleet.register(0, engine_of(f"d{number}")))
            await self.frame(number, full())

    async def frame(self, number: int, report: EngineReport) -> None:
        """An engine reports, and does as it is told."""
        plane, held_here = self.fleet.planes[self.at[number]], self.held[number]
        answer = await plane.report(self.engines[number], report)
        for directive in answer.directives:
            if directive.release is not None:
                del held_here[directive.retention_id]
                ended = ((directive.retention_id, directive.release),)
                await self.frame(number, EngineReport(ended=ended))
                continue
            lease = plane.manager.get(directive.lease)
            before = held_here[directive.retention_id]
            assert before is None or before.name == lease.name
            held_here[directive.retention_id] = lease

    async def step(self) -> None:
        """Something happens."""
        number = self.picks.randrange(3)
        match self.picks.randrange(5):
            case 0:
                await self.turn(number)
            case 1:
                await self.move(number, self.picks.randrange(3))
            case 2 | 3:
                await self.hold(self.picks.choice([*self.held[number].values(), None]))
            case _:
                await self.frame(number, held())
        if self.picks.random() < 0.3:
            await self.fleet.settle()

    async def turn(self, number: int) -> None:
        """A turn of one of six sessions leaves a retention."""
        self.turns += 1
        session = f"s{self.picks.randrange(6)}"
        retention_id = f"{session}-{self.turns}"
        self.held[number][retention_id] = None
        await self.frame(number, held(retention_of(retention_id, session)))

    async def move(self, number: int, to: int) -> None:
        """An engine's stream breaks, and comes to a replica again."""
        self.at[number] = to
        reports = [
            told(lease) if lease else retention_of(retention_id, retention_id.partition("-")[0])
            for retention_id, lease in self.held[number].items()
        ]
        await self.frame(number, full(*reports))

    async def hold(self, lease: Lease | None) -> None:
        """Somebody claims a lease at any replica, gives it up, or releases it."""
        if lease is None:
            return
        where = self.picks.randrange(3)
        self.fleet.claim(where, lease, drop=self.picks.random() < 0.4)
        if self.picks.random() < 0.2:
            await self.fleet.planes[where].manager.release(lease.name, lease.fencing_token)

    async def calm_down(self) -> None:
        """Everything is said that there is to say."""
        for _ in range(3):
            await self.fleet.settle()
            for number in range(3):
                await self.move(number, self.at[number])
        await self.fleet.settle()


@pytest.mark.parametrize("seed", range(3))
async def test_homes_move_under_load(fleet: LeaseFleet, seed: int) -> None:
    """Turns, claims, releases and moves in any order: all agree, and nothing is lost or doubled.

    What engines hold is what has live leases, and every lease ends once.
    """
    crowd = Crowd(fleet, seed)
    async with fleet.recorded() as events:
        await crowd.begin()
        for _ in range(200):
            await crowd.step()
        await crowd.calm_down()

    leases = [item.value for item in (await fleet.leases.list()).items]
    live = {lease.lease_id: lease for lease in leases if lease.state is not LeaseState.ENDED}
    assert set(live) == {
        lease.lease_id for holds in crowd.held for lease in holds.values() if lease
    }
    assert {lease.state for lease in live.values()} == {LeaseState.ACTIVE}
    assert len({lease.session_key for lease in live.values()}) == len(live)
    for lease in live.values():
        assert fleet.states(lease) == [LeaseState.ACTIVE] * 3
    ends = [name for name, state in written(events) if state is LeaseState.ENDED]
    assert len(ends) == len(set(ends)) == crowd.turns - len(live)
