"""Which leases are renewed, and when they expire."""

from kvplane_services.engine.model import KvLayout
from kvplane_services.lease.config import LeaseConfig
from kvplane_services.lease.model import EndReason, LeaseState
from kvplane_services.lease.ports import LeaseRenewal
from kvplane_services.lease.reports import Directive, EngineReport
from tests.support.state_plane import StatePlane, by_retention
from tests.support.state_values import engine_of, full, held, retention_of


async def test_leases_are_renewed_once_per_interval(plane: StatePlane) -> None:
    """Between renewals an engine is told nothing; then it is told the full TTL."""
    engine = await plane.register()
    await plane.report(engine, full(retention_of()))

    await plane.clock.advance(9.9)
    assert (await plane.report(engine, held())).directives == ()
    await plane.clock.advance(0.1)
    assert [each.renew for each in (await plane.report(engine, held())).directives] == [30.0]
    assert (await plane.report(engine, held())).directives == ()


async def test_idle_leases_lapse() -> None:
    """A lease that nobody used for `idle_keep` is no longer renewed, nor released."""
    plane = StatePlane(leases=LeaseConfig(idle_keep=120.0))
    engine = await plane.register()
    await plane.report(engine, full(retention_of()))
    renewals: list[Directive] = []
    for _ in range(18):
        await plane.clock.advance(10)
        renewals.extend((await plane.report(engine, held())).directives)

    assert len(renewals) == 11
    assert all(directive.renew == 30.0 for directive in renewals)


async def test_a_claim_counts_where_nothing_is_kept_for_being_recent() -> None:
    """With an `idle_keep` of zero a lease is renewed while somebody claims it, and only then."""
    plane = StatePlane(leases=LeaseConfig(idle_keep=0.0))
    engine = await plane.register()
    lease = await plane.held_lease(engine, full(retention_of()))
    plane.manager.claim("h", [LeaseRenewal(lease.name, lease.fencing_token, 15.0)])
    renewals: list[int] = []
    for _ in range(3):
        await plane.clock.advance(10)
        renewals.append(len((await plane.report(engine, held())).directives))

    assert renewals == [1, 0, 0]


async def test_a_read_is_a_use() -> None:
    """A retention that is read stays worth keeping."""
    plane = StatePlane(leases=LeaseConfig(idle_keep=120.0))
    engine = await plane.register()
    await plane.report(engine, full(retention_of()))
    for _ in range(11):
        await plane.clock.advance(10)
        await plane.report(engine, held())
    await plane.report(engine, EngineReport(reads=(("r1", 1),)))

    await plane.clock.advance(10)

    assert len((await plane.report(engine, held())).directives) == 1


async def test_claimed_leases_are_renewed_however_long() -> None:
    """A claim keeps a lease past its idle time, and for that time after the claim's end."""
    plane = StatePlane(leases=LeaseConfig(idle_keep=120.0))
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
    """Of too many leases the claimed ones are renewed, then, of one kind, the newest."""
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
