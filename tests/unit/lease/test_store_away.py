"""What leases do while the store is away, and after it has lost its data."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from kvplane_services.adapters.records import LEASES
from kvplane_services.errors import TooLarge, Unavailable
from kvplane_services.lease.model import EndReason, Handle, Lease, LeaseState, RenewalOutcome
from kvplane_services.lease.reports import EngineReport
from kvplane_services.store.model import Delete, Put, Removed
from kvplane_services.store.paging import PageRequest
from tests.support.lease_fleet import LeaseFleet, told, written
from tests.support.state_plane import by_retention
from tests.support.state_values import engine_of, full, held, retention_of


def cut(fleet: LeaseFleet, **how: object) -> None:
    for store in fleet.stores:
        store.cut(**how)  # type: ignore[arg-type]


def heal(fleet: LeaseFleet) -> None:
    for store in fleet.stores:
        store.heal()


@pytest.mark.parametrize("how", [{}, {"hangs": 5.0}, {"hangs": 5.0, "notices": False}])
async def test_renewals_do_not_wait_for_the_store(
    fleet: LeaseFleet, how: dict[str, object]
) -> None:
    """They are answered from memory, at once, for as long as it takes."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    cut(fleet, **how)
    renewed = 0
    for _ in range(60):
        await fleet.advance(1, step=1)
        before = fleet.clock.now()
        renewed += len((await fleet.planes[0].manager.report(engine, held())).directives)
        assert fleet.clock.now() == before

    assert renewed == 6
    assert fleet.states(lease) == [LeaseState.ACTIVE] * 3


@pytest.mark.parametrize("again", [True, False])
async def test_new_retentions_get_leases_once_the_store_is_back(
    fleet: LeaseFleet, *, again: bool
) -> None:
    """Without being reported again, and under one lease if they are."""
    engine = await fleet.register(0)
    await fleet.report(0, engine, full())
    cut(fleet)
    answer = await fleet.planes[0].report(engine, held(retention_of()))
    assert answer.directives == ()
    assert not answer.full_report_needed
    if again:
        await fleet.planes[0].report(engine, full(retention_of()))
    await fleet.advance(3)

    heal(fleet)
    await fleet.advance(5)
    (directive,) = (await fleet.report(0, engine, held())).directives

    assert directive.renew == 30.0
    lease = fleet.planes[0].manager.get(directive.lease)
    assert fleet.states(lease) == [LeaseState.ACTIVE] * 3
    assert len((await fleet.leases.list()).items) == 1


async def test_a_retention_that_ended_meanwhile_gets_none(fleet: LeaseFleet) -> None:
    """Whether the engine said so, or left it out of a full report, or restarted."""
    engines = [await fleet.register(0, engine_of(name)) for name in ("d0", "d1", "d2")]
    for engine in engines:
        await fleet.report(0, engine, full())
    cut(fleet)
    manager = fleet.planes[0].manager
    for number, engine in enumerate(engines):
        await manager.report(engine, held(retention_of("r1", f"s{number}")))
    await manager.report(engines[0], EngineReport(ended=(("r1", EndReason.RECLAIMED),)))
    await manager.report(engines[1], full())
    heal(fleet)
    await fleet.register(0, engine_of("d2"))
    await fleet.advance(5)

    assert (await fleet.leases.list()).items == ()


async def test_a_frame_waits_a_moment_for_tokens_at_most(fleet: LeaseFleet) -> None:
    """A store that hangs unnoticed holds an engine's stream for a quarter of a second."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    cut(fleet, hangs=60.0, notices=False)
    await fleet.advance(10, step=1)
    report = held(retention_of("r2", "other"))
    frame = asyncio.ensure_future(fleet.planes[0].manager.report(engine, report))
    await fleet.settle()
    assert not frame.done()
    for _ in range(4):
        await fleet.clock.advance(0.13)

    answer = by_retention(await frame)

    assert list(answer) == ["r1"]
    assert answer["r1"].lease == lease.name


async def test_one_engine_that_waits_holds_up_no_other(fleet: LeaseFleet) -> None:
    """Each has its own turn."""
    first, second = (
        await fleet.register(0, engine_of("d0")),
        await fleet.register(0, engine_of("d1")),
    )
    await fleet.report(0, first, full())
    await fleet.report(0, second, full())
    cut(fleet, hangs=60.0, notices=False)
    manager = fleet.planes[0].manager
    waiting = asyncio.ensure_future(manager.report(first, held(retention_of())))
    await fleet.settle()

    await manager.report(second, held())

    assert not waiting.done()
    for _ in range(4):
        await fleet.clock.advance(0.13)
    await waiting


async def test_what_happened_meanwhile_is_written_after(fleet: LeaseFleet) -> None:
    """Ends and superseded leases, each once, in their last state."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    await fleet.report(0, engine, held(retention_of("r2", "other")))
    cut(fleet)
    manager = fleet.planes[0].manager
    await manager.report(engine, held(told(lease, tokens=80)))
    await manager.report(engine, held(told(lease, tokens=96)))
    await manager.report(engine, EngineReport(ended=(("r2", EndReason.RECLAIMED),)))
    await fleet.advance(5)
    async with fleet.recorded() as events:
        heal(fleet)
        await fleet.advance(10)

    assert sorted(written(events), key=repr) == [
        ("r1", LeaseState.ACTIVE),
        ("r2", LeaseState.ENDED),
    ]
    for plane in fleet.planes:
        assert plane.manager.get(lease.name).tokens == 96


async def test_a_lease_that_vanishes_is_not_over(fleet: LeaseFleet) -> None:
    """It is claimed and read on for a while, in which its home puts it back."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    fleet.stores[0].cut()
    fleet.shared.lose_everything()
    await fleet.settle()

    assert fleet.states(lease) == [LeaseState.ACTIVE] * 3
    assert fleet.claim(1, lease, ttl=60.0).outcome is RenewalOutcome.RENEWED
    await fleet.advance(20)
    fleet.stores[0].heal()
    await fleet.advance(10)

    stored = await fleet.stored(lease)
    assert stored is not None
    assert (stored.fencing_token, stored.state) == (lease.fencing_token, LeaseState.ACTIVE)
    assert [claim.holder for claim in fleet.planes[0].manager.get(lease.name).claims] == ["h"]


async def test_a_lease_that_nobody_puts_back_is_forgotten(fleet: LeaseFleet) -> None:
    """Once its engine must have freed the blocks."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    fleet.claim(1, lease, ttl=600.0)
    await fleet.settle()
    fleet.stores[0].cut()
    fleet.shared.lose_everything()

    await fleet.advance(36)

    assert fleet.claim(1, lease).outcome is RenewalOutcome.NOT_FOUND
    assert await fleet.noted() == {}


async def test_a_store_that_lost_its_data_gets_everything_back(fleet: LeaseFleet) -> None:
    """Every live lease with its name, token and state; none ends, and none is written twice."""
    engines = [await fleet.register(at, engine_of(f"d{at}")) for at in range(3)]
    leases = []
    for at, engine in enumerate(engines):
        reports = [retention_of(f"r{number}", f"{at}-{number}") for number in range(120)]
        answer = await fleet.report(at, engine, full(*reports))
        leases += [fleet.planes[at].manager.get(each.lease) for each in answer.directives]
    released = leases[0]
    await fleet.planes[0].manager.release(released.name, released.fencing_token)
    await fleet.settle()
    async with fleet.recorded() as events:
        fleet.shared.lose_everything()
        for _ in range(10):
            await fleet.advance(1, step=1)
            for at, engine in enumerate(engines):
                answer = await fleet.report(at, engine, held())
                assert not answer.full_report_needed

    stored = {item.key: item.value for item in (await fleet.leases.list()).items}
    assert {lease.lease_id: lease.fencing_token for lease in leases} == {
        key: lease.fencing_token for key, lease in stored.items()
    }
    assert stored[released.lease_id].state is LeaseState.RELEASING
    assert LeaseState.ENDED not in {state for _, state in written(events)}
    assert not any(isinstance(event, Removed) for event in events)
    for plane in fleet.planes:
        assert plane.manager.get(leases[5].name).state is LeaseState.ACTIVE


async def test_changes_during_a_loss_are_kept(fleet: LeaseFleet) -> None:
    """What is granted, released and ended while the store comes back ends up right."""
    engine = await fleet.register(0)
    first = await fleet.held_lease(0, engine)
    second = by_retention(await fleet.report(0, engine, held(retention_of("r2", "b"))))["r2"]
    fleet.shared.lose_everything()
    await fleet.planes[0].report(
        engine,
        EngineReport(retentions=(retention_of("r3", "c"),), ended=(("r2", EndReason.RECLAIMED),)),
    )
    await fleet.beat(0, engine, 10)

    stored = {item.value.retention_id: item.value for item in (await fleet.leases.list()).items}
    assert stored["r1"].fencing_token == first.fencing_token
    assert stored["r3"].state is LeaseState.ACTIVE
    assert stored["r2"].state is LeaseState.ENDED
    assert fleet.planes[1].manager.get(second.lease).end_reason is EndReason.RECLAIMED


async def test_a_plane_that_starts_on_an_empty_store_adopts(fleet: LeaseFleet) -> None:
    """Engines' own reports bring everything back, under the same names and tokens."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    after = LeaseFleet()
    after.clock = fleet.clock
    async with after.running():
        registered = await after.register(1, engine)

        (directive,) = (await after.report(1, registered, full(told(lease)))).directives

        assert (lease.name, lease.fencing_token) == (directive.lease, directive.fencing_token)
        assert after.states(lease) == [LeaseState.ACTIVE] * 3


async def test_ended_leases_leave_nothing_behind(fleet: LeaseFleet) -> None:
    """Not even if the replica that ended them is gone."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    await fleet.report(0, engine, EngineReport(ended=(("r1", EndReason.RECLAIMED),)))
    fleet.stores[0].cut()
    await fleet.advance(590, step=10)
    assert fleet.planes[1].manager.get(lease.name).end_reason is EndReason.RECLAIMED

    await fleet.advance(140, step=10)

    assert (await fleet.leases.list()).items == ()


async def test_a_lease_that_is_too_large_to_be_written(
    fleet: LeaseFleet, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody can be told of it, so its engine gives the blocks back; an operator hears why."""
    table = fleet.stores[0].table(LEASES)
    commit = table.commit

    async def limited(changes: Sequence[Put[Lease] | Delete], **named: Any) -> int:
        for change in changes:
            if isinstance(change, Put) and len(change.value.handle.kv_transfer_params) > 1000:
                about = {"key": change.key} if len(changes) == 1 else {}
                raise TooLarge("at most 1000 bytes at once", **about)
        return await commit(changes, **named)

    table.commit = limited  # type: ignore[method-assign]
    engine = await fleet.register(0)
    large = retention_of("large", handle=Handle(b'{"remote_block_ids":[[' + b"1," * 999 + b"1]]}"))
    await fleet.report(0, engine, full(retention_of("small", "other"), large))
    await fleet.advance(5)

    answer = await fleet.report(0, engine, held())
    (directive,) = [one for one in answer.directives if one.release]
    assert (directive.retention_id, directive.release) == ("large", EndReason.RELEASED)
    told_of = [each for each in caplog.records if "cannot be written" in each.getMessage()]
    assert len(told_of) == 1
    await fleet.report(0, engine, EngineReport(ended=(("large", EndReason.RELEASED),)))
    for plane in fleet.planes:
        assert plane.manager.get(directive.lease).end_reason is EndReason.RELEASED
        assert len((await plane.manager.list(PageRequest())).items) == 1


async def test_what_ended_while_the_store_was_away_is_not_released(fleet: LeaseFleet) -> None:
    """Its end is not written yet, but is no less final for its home."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    fleet.stores[0].cut()
    await fleet.planes[0].report(engine, full())
    await fleet.advance(5)

    async with fleet.recorded() as events:
        fleet.stores[0].heal()
        await fleet.planes[0].manager.release(lease.name, lease.fencing_token)
        await fleet.advance(5)

    assert written(events) == [("r1", LeaseState.ENDED)]
    assert fleet.planes[1].manager.get(lease.name).end_reason is EndReason.RECLAIMED


async def test_a_lease_that_was_never_heard_of_is_not_said_to_be_gone(fleet: LeaseFleet) -> None:
    """A replica without the store cannot tell, and says so."""
    engine = await fleet.register(0)
    fleet.stores[1].cut()
    lease = await fleet.held_lease(0, engine)

    with pytest.raises(Unavailable):
        await fleet.planes[1].manager.release(lease.name, lease.fencing_token)
    fleet.stores[1].heal()
    await fleet.planes[1].manager.release(lease.name, lease.fencing_token)
    await fleet.planes[1].manager.release("leases/unknown", 1)
    await fleet.settle()

    assert fleet.states(lease)[0] is LeaseState.RELEASING
