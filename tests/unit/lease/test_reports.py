"""What the manager does with what engines report."""

from dataclasses import replace

import pytest

from kvplane_services.engine.model import KvLayout
from kvplane_services.errors import InvalidRequest
from kvplane_services.lease.config import LeaseConfig
from kvplane_services.lease.model import EndReason, Handle, LeaseState
from kvplane_services.lease.ports import LeaseRenewal
from kvplane_services.lease.reports import Directive, EngineReport
from tests.support.state_plane import StatePlane, by_retention
from tests.support.state_values import engine_of, full, handle_of, held, key_of, retention_of


@pytest.fixture
def plane() -> StatePlane:
    return StatePlane()


async def test_a_retention_gets_a_lease(plane: StatePlane) -> None:
    """The engine is told its name, its token and its TTL; readers see all that was reported."""
    engine = await plane.register()
    retention = retention_of(message_digest=b"digest")

    answer = await plane.report(engine, full(retention))

    (directive,) = answer.directives
    lease = plane.manager.get(directive.lease)
    assert Directive("r1", lease.name, lease.fencing_token, renew=30.0) == directive
    assert not answer.full_report_needed
    assert lease.state is LeaseState.ACTIVE
    assert (key_of(), "d0", engine.epoch, "r1") == (
        lease.session_key,
        lease.engine_id,
        lease.engine_epoch,
        lease.retention_id,
    )
    assert (64, 4, retention.handle, b"digest", retention.decision_id) == (
        lease.tokens,
        lease.blocks,
        lease.handle,
        lease.message_digest,
        lease.decision_id,
    )
    assert lease.ttl == 30.0
    assert lease.expire_time is not None
    assert (lease.expire_time - plane.clock.wall()).total_seconds() == 35.0


async def test_every_grant_has_a_larger_token(plane: StatePlane) -> None:
    """Tokens grow from grant to grant, on whichever engine."""
    first, second = await plane.register(engine_of("d0")), await plane.register(engine_of("d1"))
    tokens = [
        (await plane.held_lease(engine, full(retention_of("r", str(number))))).fencing_token
        for number, engine in enumerate((first, second))
    ]

    assert sorted(set(tokens)) == tokens


async def test_a_repeated_report_grants_nothing_new(plane: StatePlane) -> None:
    """Frames stand alone and may be repeated: the lease stays the same."""
    engine = await plane.register()
    first = await plane.report(engine, full(retention_of()))

    again = await plane.report(engine, full(retention_of()))

    assert first.directives == again.directives


async def test_a_delta_without_a_full_report_asks_for_one(plane: StatePlane) -> None:
    """Until the plane has seen everything once it says so, and grants all the same."""
    engine = await plane.register()

    answer = await plane.report(engine, held(retention_of()))

    assert answer.full_report_needed
    assert len(answer.directives) == 1
    assert not (await plane.report(engine, full(retention_of()))).full_report_needed
    assert not (await plane.report(engine, held())).full_report_needed


async def test_a_new_registration_needs_a_full_report_of_its_own(plane: StatePlane) -> None:
    """What an earlier registration reported says nothing about the present one."""
    await plane.report(await plane.register(), full())

    assert (await plane.report(await plane.register(), held())).full_report_needed


async def test_a_newer_turn_supersedes_the_older(plane: StatePlane) -> None:
    """The older lease is released once, as SUPERSEDED, and is over when the engine says so."""
    engine = await plane.register()
    older = await plane.held_lease(engine, full(retention_of("r1")))

    answer = await plane.report(engine, held(retention_of("r2")))

    directives = by_retention(answer)
    assert directives["r1"].release is EndReason.SUPERSEDED
    assert directives["r1"].fencing_token == older.fencing_token
    assert directives["r2"].renew == 30.0
    assert plane.manager.get(older.name).state is LeaseState.RELEASING
    assert (await plane.report(engine, held())).directives == ()

    await plane.report(engine, EngineReport(ended=(("r1", EndReason.RELEASED),)))

    ended = plane.manager.get(older.name)
    assert (ended.state, ended.end_reason) == (LeaseState.ENDED, EndReason.SUPERSEDED)


async def test_supersession_reaches_over_engines(plane: StatePlane) -> None:
    """A session that moved to another engine leaves nothing behind on the first."""
    first, second = await plane.register(engine_of("d0")), await plane.register(engine_of("d1"))
    older = await plane.held_lease(first, full(retention_of("r1")))
    await plane.report(second, full(retention_of("r1")))

    answer = await plane.report(first, held())

    assert (Directive("r1", older.name, older.fencing_token, release=EndReason.SUPERSEDED),) == (
        answer.directives
    )


async def test_other_sessions_are_not_superseded(plane: StatePlane) -> None:
    """Keys that differ in any part do not touch each other's leases."""
    engine = await plane.register()
    keys = [
        replace(key_of(), **{part: "x"}) for part in ("tenant", "model", "adapter", "session_id")
    ]
    retentions = [
        replace(retention_of(f"r{number}"), session_key=key)
        for number, key in enumerate([key_of(), *keys])
    ]

    answer = await plane.report(engine, full(*retentions))

    assert [directive.renew for directive in answer.directives] == [30.0] * 5


async def test_a_superseded_lease_ends_at_its_deadline_without_the_engines_word(
    plane: StatePlane,
) -> None:
    """Nothing waits for a confirmation that never comes."""
    engine = await plane.register(ttl=300.0)
    older = await plane.held_lease(engine, full(retention_of("r1")))
    await plane.report(engine, held(retention_of("r2")))

    await plane.clock.advance(34.9)
    await plane.manager.sweep()
    assert plane.manager.get(older.name).state is LeaseState.RELEASING
    await plane.clock.advance(0.1)
    await plane.manager.sweep()

    assert plane.manager.get(older.name).end_reason is EndReason.SUPERSEDED


async def test_a_release_is_told_again_to_a_new_stream(plane: StatePlane) -> None:
    """The answer that carried it may have been lost with the stream."""
    engine = await plane.register()
    older = await plane.held_lease(engine, full(retention_of("r1")))
    await plane.report(engine, held(retention_of("r2")))
    reported = retention_of("r1", lease=older.name, fencing_token=older.fencing_token)

    answer = await plane.report(engine, full(reported, retention_of("r2")))

    assert by_retention(answer)["r1"].release is EndReason.SUPERSEDED


@pytest.mark.parametrize("reason", list(EndReason))
async def test_an_end_is_recorded_with_its_reason(plane: StatePlane, reason: EndReason) -> None:
    """What the engine says of an end is what readers are told."""
    engine = await plane.register()
    lease = await plane.held_lease(engine, full(retention_of()))

    await plane.report(engine, EngineReport(ended=(("r1", reason),)))

    ended = plane.manager.get(lease.name)
    assert (LeaseState.ENDED, reason) == (ended.state, ended.end_reason)


async def test_an_end_is_told_exactly_once(plane: StatePlane) -> None:
    """A repeated report of the end, or a later one with another reason, changes nothing."""
    engine = await plane.register()
    lease = await plane.held_lease(engine, full(retention_of()))
    async with plane.recorded_leases() as events:
        for reason in (EndReason.RECLAIMED, EndReason.RECLAIMED, EndReason.EXPIRED):
            await plane.report(engine, EngineReport(ended=(("r1", reason),)))
        await plane.report(engine, full())
        await plane.clock.advance(100)
        await plane.manager.sweep()

    assert [(lease.lease_id, EndReason.RECLAIMED)] == [
        (event.key, event.value.end_reason) for event in events
    ]


async def test_a_retention_that_begins_and_ends_within_one_frame(plane: StatePlane) -> None:
    """Both are told: its grant, and its end."""
    engine = await plane.register()
    async with plane.recorded_leases() as events:
        report = EngineReport(
            retentions=(retention_of(),), ended=(("r1", EndReason.RECLAIMED),), full=True
        )
        assert (await plane.report(engine, report)).directives == ()

    assert [event.value.state for event in events] == [LeaseState.ACTIVE, LeaseState.ENDED]


async def test_ends_of_unknown_retentions_are_ignored(plane: StatePlane) -> None:
    """An engine may report the end of what the plane never knew."""
    engine = await plane.register()

    answer = await plane.report(
        engine, EngineReport(ended=(("r9", EndReason.EXPIRED),), reads=(("r9", 1),), full=True)
    )

    assert answer.directives == ()


async def test_what_a_full_report_leaves_out_is_over(plane: StatePlane) -> None:
    """The engine is the source of truth: before its time only pressure can have ended a lease."""
    engine = await plane.register()
    await plane.report(engine, full(retention_of("r1", "a"), retention_of("r2", "b")))
    leases = {name: plane.manager._ledger.retention("d0", name) for name in ("r1", "r2")}

    await plane.report(engine, full(retention_of("r2", "b")))

    gone, there = leases["r1"], leases["r2"]
    assert gone is not None
    assert there is not None
    assert gone.lease.end_reason is EndReason.RECLAIMED
    assert there.lease.state is LeaseState.ACTIVE


async def test_what_a_full_report_leaves_out_after_its_time_expired(plane: StatePlane) -> None:
    """An engine that was cut off for longer than the TTL let its leases expire."""
    engine = await plane.register(ttl=300.0)
    lease = await plane.held_lease(engine, full(retention_of()))
    await plane.clock.advance(31)

    await plane.report(engine, full())

    assert plane.manager.get(lease.name).end_reason is EndReason.EXPIRED


async def test_a_full_report_tells_the_reasons_it_knows(plane: StatePlane) -> None:
    """The engine's own word stands before the plane's inference."""
    engine = await plane.register()
    lease = await plane.held_lease(engine, full(retention_of()))

    await plane.report(engine, EngineReport(ended=(("r1", EndReason.CONSUMED),), full=True))

    assert plane.manager.get(lease.name).end_reason is EndReason.CONSUMED


async def test_reads_are_counted(plane: StatePlane) -> None:
    """The engine's count is taken over, and never goes back."""
    engine = await plane.register()
    lease = await plane.held_lease(engine, full(retention_of()))
    for reads in (1, 3, 2):
        await plane.report(engine, EngineReport(reads=(("r1", reads),)))

    assert plane.manager.get(lease.name).reads == 3

    await plane.report(engine, held(retention_of(reads=7)))
    assert plane.manager.get(lease.name).reads == 7


async def test_reads_alone_are_no_event(plane: StatePlane) -> None:
    """Followers are not told of every read."""
    engine = await plane.register()
    await plane.report(engine, full(retention_of()))
    async with plane.recorded_leases() as events:
        await plane.report(engine, EngineReport(reads=(("r1", 1),)))

    assert events == []


async def test_a_refreshed_handle_replaces_the_old_one(plane: StatePlane) -> None:
    """After a renewal the engine exports a new expiry: same lease, same token, new handle."""
    engine = await plane.register()
    lease = await plane.held_lease(engine, full(retention_of()))
    known = retention_of(handle=handle_of(2.0), lease=lease.name, fencing_token=lease.fencing_token)
    async with plane.recorded_leases() as events:
        answer = await plane.report(engine, held(known))
        await plane.report(engine, held(known))

    assert answer.directives == ()
    refreshed = plane.manager.get(lease.name)
    assert handle_of(2.0) == refreshed.handle
    assert lease.fencing_token == refreshed.fencing_token
    assert [handle_of(2.0)] == [event.value.handle for event in events]


async def test_an_engine_that_does_not_know_the_lease_is_told_again(plane: StatePlane) -> None:
    """An engine that reports a retention without its lease missed the answer."""
    engine = await plane.register()
    first = await plane.report(engine, full(retention_of()))

    again = await plane.report(engine, held(retention_of(handle=handle_of(2.0))))

    assert first.directives == again.directives


async def test_a_restarted_plane_adopts_leases(plane: StatePlane) -> None:
    """A plane that lost its memory takes leases up under the same names and tokens."""
    before = plane
    engine = await before.register()
    lease = await before.held_lease(engine, full(retention_of()))
    await before.clock.advance(1)
    after = StatePlane(clock=before.clock)
    engine = await after.register(engine)
    reported = retention_of(lease=lease.name, fencing_token=lease.fencing_token, reads=2)

    answer = await after.report(engine, full(reported))

    (directive,) = answer.directives
    assert (lease.name, lease.fencing_token) == (directive.lease, directive.fencing_token)
    adopted = after.manager.get(lease.name)
    assert adopted.engine_epoch == engine.epoch
    assert adopted.reads == 2


async def test_tokens_after_an_adoption_are_larger(plane: StatePlane) -> None:
    """Even an adopted token from a clock that ran ahead is smaller than all that follow."""
    engine = await plane.register()
    ahead = 1 << 60
    await plane.report(
        engine, full(retention_of("r1", "a", lease="leases/old", fencing_token=ahead))
    )

    answer = await plane.report(engine, held(retention_of("r2", "b")))

    assert answer.directives[0].fencing_token > ahead


async def test_of_adopted_leases_the_newest_stays(plane: StatePlane) -> None:
    """In whichever order they are reported, the largest token is the session's."""
    engine = await plane.register()
    newer = retention_of("r2", lease="leases/new", fencing_token=20)
    older = retention_of("r1", lease="leases/old", fencing_token=10)

    answer = by_retention(await plane.report(engine, full(newer, older)))

    assert answer["r1"].release is EndReason.SUPERSEDED
    assert answer["r2"].renew == 30.0


async def test_an_ended_lease_is_not_adopted(plane: StatePlane) -> None:
    """A name that said why it ended does not come back to life; the blocks get a new lease."""
    engine = await plane.register()
    lease = await plane.held_lease(engine, full(retention_of()))
    await plane.report(engine, EngineReport(ended=(("r1", EndReason.RECLAIMED),)))
    reported = retention_of(lease=lease.name, fencing_token=lease.fencing_token)

    answer = await plane.report(engine, held(reported))

    assert answer.directives[0].lease != lease.name
    assert answer.directives[0].fencing_token > lease.fencing_token
    assert plane.manager.get(lease.name).state is LeaseState.ENDED


async def test_a_lease_of_another_engine_is_not_adopted(plane: StatePlane) -> None:
    """An engine cannot take over what another one holds."""
    first, second = await plane.register(engine_of("d0")), await plane.register(engine_of("d1"))
    lease = await plane.held_lease(first, full(retention_of("r1", "a")))
    stolen = retention_of("r1", "b", lease=lease.name, fencing_token=lease.fencing_token)

    answer = await plane.report(second, full(stolen))

    assert answer.directives[0].lease != lease.name
    assert plane.manager.get(lease.name).engine_id == "d0"


@pytest.mark.parametrize(("lease", "token"), [("leases/../x", 5), ("x", 5), ("leases/x", 0)])
async def test_broken_names_and_tokens_are_not_adopted(
    plane: StatePlane, lease: str, token: int
) -> None:
    """What cannot be a lease of an earlier life gets a new one."""
    engine = await plane.register()

    answer = await plane.report(engine, full(retention_of(lease=lease, fencing_token=token)))

    assert answer.directives[0].lease != lease


async def test_a_retention_no_lease_can_be_granted_on_is_released(plane: StatePlane) -> None:
    """One request's broken parameters cost its own retention, and nobody else's."""
    engine = await plane.register()
    broken = retention_of("bad", handle=Handle(b"no json"))

    answer = await plane.report(engine, full(broken, retention_of("good")))

    directives = by_retention(answer)
    assert directives["bad"].release is EndReason.RELEASED
    assert directives["good"].renew == 30.0


async def test_a_retention_without_a_name_spoils_the_frame(plane: StatePlane) -> None:
    """Nothing of such a frame is taken in."""
    engine = await plane.register()

    with pytest.raises(InvalidRequest):
        await plane.report(engine, full(retention_of("r1"), retention_of("")))

    assert plane.manager._ledger.on_engine("d0") == []


async def test_a_new_epoch_fences_what_was_held_before(plane: StatePlane) -> None:
    """A restarted engine holds nothing of its earlier self's."""
    lease = await plane.held_lease(await plane.register(), full(retention_of()))

    await plane.register()

    ended = plane.manager.get(lease.name)
    assert (ended.state, ended.end_reason) == (LeaseState.ENDED, EndReason.FENCED)


async def test_the_loss_of_an_engine_ends_its_leases(plane: StatePlane) -> None:
    """Followers are told at once that its handles are worthless."""
    async with plane.running():
        lease = await plane.held_lease(await plane.register(), full(retention_of()))

        await plane.clock.advance(16)

        assert plane.manager.get(lease.name).end_reason is EndReason.ENGINE_LOST


async def test_a_deregistered_engine_leaves_no_leases(plane: StatePlane) -> None:
    """An engine that stops takes its leases along."""
    async with plane.running():
        engine = await plane.register()
        lease = await plane.held_lease(engine, full(retention_of()))

        await plane.directory.deregister("d0", engine.epoch)
        await plane.settle()

        assert plane.manager.get(lease.name).end_reason is EndReason.ENGINE_LOST


async def test_a_report_that_was_overtaken_is_not_taken_in(plane: StatePlane) -> None:
    """A report of an earlier registration grants nothing, though its heartbeat was in time."""
    stale = await plane.register()
    await plane.register()

    answer = await plane.manager.report(stale, full(retention_of()))

    assert answer.directives == ()
    assert plane.manager._ledger.on_engine("d0") == []


async def test_an_ended_lease_has_no_handle(plane: StatePlane) -> None:
    """Nobody is given the means to read blocks that are free."""
    engine = await plane.register()
    lease = await plane.held_lease(engine, full(retention_of()))

    await plane.report(engine, EngineReport(ended=(("r1", EndReason.RECLAIMED),)))

    assert plane.manager.get(lease.name).handle == Handle(b"{}")


async def test_late_news_of_a_loss_does_not_touch_the_successor(plane: StatePlane) -> None:
    """Leases of a newer registration outlive the loss of an older one."""
    lost = await plane.register()
    engine = await plane.register()
    lease = await plane.held_lease(engine, full(retention_of()))

    await plane.manager.observe(replace(lost, state=type(lost.state).LOST))
    await plane.manager.observe_gone("d0")

    assert plane.manager.get(lease.name).state is LeaseState.ACTIVE


async def test_leases_are_renewed_once_per_interval(plane: StatePlane) -> None:
    """Between renewals an engine is told nothing; then it is told the full TTL."""
    engine = await plane.register()
    await plane.report(engine, full(retention_of()))

    await plane.clock.advance(9.9)
    assert (await plane.report(engine, held())).directives == ()
    await plane.clock.advance(0.1)
    assert [each.renew for each in (await plane.report(engine, held())).directives] == [30.0]
    assert (await plane.report(engine, held())).directives == ()


async def test_idle_leases_lapse(plane: StatePlane) -> None:
    """A lease that nobody used for `idle_keep` is no longer renewed, nor released."""
    engine = await plane.register()
    await plane.report(engine, full(retention_of()))
    renewals: list[Directive] = []
    for _ in range(18):
        await plane.clock.advance(10)
        renewals.extend((await plane.report(engine, held())).directives)

    assert len(renewals) == 11
    assert all(directive.renew == 30.0 for directive in renewals)


async def test_a_read_is_a_use(plane: StatePlane) -> None:
    """A retention that is read stays worth keeping."""
    engine = await plane.register()
    await plane.report(engine, full(retention_of()))
    for _ in range(11):
        await plane.clock.advance(10)
        await plane.report(engine, held())
    await plane.report(engine, EngineReport(reads=(("r1", 1),)))

    await plane.clock.advance(10)

    assert len((await plane.report(engine, held())).directives) == 1


async def test_claimed_leases_are_renewed_however_long(plane: StatePlane) -> None:
    """A claim keeps a lease past its idle time, and for that time after the claim's end."""
    engine = await plane.register()
    lease = await plane.held_lease(engine, full(retention_of()))
    renewed = []
    for round_ in range(45):
        await plane.manager.renew("h", [LeaseRenewal(lease.name, lease.fencing_token, 15.0)]) if (
            round_ < 20
        ) else None
        await plane.clock.advance(10)
        renewed.append(len((await plane.report(engine, held())).directives))

    # The last claim ran out at 205 s; idle_keep counts from there.
    assert renewed[:32] == [1] * 32
    assert renewed[32:] == [0] * 13


async def test_the_budget_limits_what_is_renewed() -> None:
    """Of too many idle leases only the newest are renewed; claimed ones always are."""
    plane = StatePlane(leases=LeaseConfig(retention_budget=0.5))
    engine = await plane.register(engine_of(layout=KvLayout(block_size=16, total_blocks=100)))
    leases = {}
    for number in range(4):
        lease = await plane.held_lease(
            engine, EngineReport((retention_of(f"r{number}", str(number), blocks=25),))
        )
        leases[lease.retention_id] = lease
    await plane.manager.renew(
        "h", [LeaseRenewal(leases["r0"].name, leases["r0"].fencing_token, 60.0)]
    )
    await plane.clock.advance(10)

    answer = await plane.report(engine, held())

    assert {"r0", "r3"} == set(by_retention(answer))


async def test_a_new_lease_is_held_for_its_ttl_even_beyond_the_budget() -> None:
    """A turn's successor gets its chance: only renewals are subject to the policy."""
    plane = StatePlane(leases=LeaseConfig(retention_budget=0.0))
    engine = await plane.register()

    answer = await plane.report(engine, full(retention_of()))

    assert answer.directives[0].renew == 30.0


async def test_a_renewal_never_shortens(plane: StatePlane) -> None:
    """An engine that holds blocks for longer than the TTL is believed, also after a renewal."""
    engine = await plane.register(ttl=300.0)
    lease = await plane.held_lease(engine, full(retention_of(remaining=200.0)))

    await plane.clock.advance(100)
    await plane.report(engine, held())
    await plane.clock.advance(104.9)
    await plane.manager.sweep()
    assert plane.manager.get(lease.name).state is LeaseState.ACTIVE
    await plane.clock.advance(0.1)
    await plane.manager.sweep()

    assert plane.manager.get(lease.name).end_reason is EndReason.EXPIRED


async def test_each_lease_expires_at_its_own_time(plane: StatePlane) -> None:
    """A lease with time left that was granted first does not hold up others behind it."""
    engine = await plane.register(ttl=300.0)
    await plane.report(
        engine,
        full(retention_of("long", "a", remaining=100.0), retention_of("short", "b", remaining=0.0)),
    )
    await plane.clock.advance(35)

    await plane.manager.sweep()

    assert [record.lease.retention_id for record in plane.manager._ledger.on_engine("d0")] == [
        "long"
    ]


async def test_the_plane_expires_later_than_the_engine(plane: StatePlane) -> None:
    """The engine gives up at the TTL, the plane a grace later."""
    engine = await plane.register(ttl=300.0)
    lease = await plane.held_lease(engine, full(retention_of()))
    await plane.clock.advance(34.9)
    await plane.manager.sweep()
    assert plane.manager.get(lease.name).state is LeaseState.ACTIVE

    await plane.clock.advance(0.1)
    await plane.manager.sweep()

    assert plane.manager.get(lease.name).end_reason is EndReason.EXPIRED


async def test_blocks_held_beyond_the_planes_expiry_get_a_new_lease(plane: StatePlane) -> None:
    """The engine is the source of truth: what it still holds is leased again, under a new name."""
    engine = await plane.register(ttl=300.0)
    lease = await plane.held_lease(engine, full(retention_of()))
    await plane.clock.advance(35)
    await plane.manager.sweep()

    again = await plane.held_lease(
        engine, full(retention_of(lease=lease.name, fencing_token=lease.fencing_token))
    )

    assert again.name != lease.name
    assert again.state is LeaseState.ACTIVE
