"""Claims that are made at another replica than the lease's home."""

import pytest

from kvplane_services.lease.model import Claim, ClaimNote, EndReason, LeaseState, RenewalOutcome
from kvplane_services.lease.ports import LeaseRenewal
from kvplane_services.lease.reports import EngineReport
from tests.support.lease_fleet import LeaseFleet, told
from tests.support.state_values import full, held, retention_of


def names(claims: tuple[Claim, ...]) -> list[str]:
    return [claim.holder for claim in claims]


async def test_a_claim_elsewhere_keeps_a_lease(fleet: LeaseFleet) -> None:
    """It is renewed for as long as it is claimed at any replica, and for its idle time after."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    renewed = []
    for round_ in range(30):
        if round_ < 15:
            assert fleet.claim(1, lease, ttl=15.0).outcome is RenewalOutcome.RENEWED
        renewed.append(len(await fleet.beat(0, engine, 10, every=10)))

    # The last claim ran out at 155 s; idle_keep counts from there.
    assert renewed[:27] == [1] * 27
    assert renewed[28:] == [0] * 2


async def test_everybody_sees_who_claims(fleet: LeaseFleet) -> None:
    """At the home, where the claim was made, and elsewhere."""
    lease = await fleet.held_lease(0, await fleet.register(0))
    fleet.claim(1, lease, "a", ttl=20.0)
    fleet.claim(0, lease, "b", ttl=20.0)
    await fleet.settle()

    assert [names(plane.manager.get(lease.name).claims) for plane in fleet.planes] == [
        ["a", "b"],
        ["a"],
        ["a"],
    ]
    assert fleet.planes[1].manager.get(lease.name).claims == (Claim("a", 20.0),)
    assert fleet.planes[0].manager.get(lease.name).claims == (Claim("a", 0.0), Claim("b", 20.0))


async def test_only_the_first_and_the_last_are_written(fleet: LeaseFleet) -> None:
    """Renewals and further holders are not."""
    lease = await fleet.held_lease(0, await fleet.register(0))
    note = {f"{lease.lease_id}/replica-1": ClaimNote(lease.fencing_token, ("a",))}
    fleet.claim(1, lease, "a")
    await fleet.settle()
    assert note == await fleet.noted()

    before = fleet.shared.memory.revision
    for _ in range(20):
        fleet.claim(1, lease, "a")
        fleet.claim(1, lease, "b")
        await fleet.settle()
    fleet.claim(1, lease, "a", drop=True)
    await fleet.settle()
    assert before == fleet.shared.memory.revision

    fleet.claim(1, lease, "b", drop=True)
    await fleet.settle()
    assert await fleet.noted() == {}


async def test_a_claim_that_lapses_is_taken_back(fleet: LeaseFleet) -> None:
    """Each at its own time, also after a longer one was dropped."""
    lease = await fleet.held_lease(0, await fleet.register(0))
    fleet.claim(1, lease, "a", ttl=100.0)
    fleet.claim(1, lease, "b", ttl=10.0)
    fleet.claim(1, lease, "a", drop=True)
    await fleet.advance(9.5)
    assert len(await fleet.noted()) == 1

    await fleet.advance(1)

    assert await fleet.noted() == {}
    assert fleet.planes[0].manager.get(lease.name).claims == ()


async def test_the_claims_of_a_dead_replica_vanish(fleet: LeaseFleet) -> None:
    """They hang on its own anchor."""
    lease = await fleet.held_lease(0, await fleet.register(0))
    fleet.claim(1, lease, ttl=600.0)
    await fleet.settle()

    fleet.stores[1].cut()
    await fleet.advance(29)
    assert len(await fleet.noted()) == 1
    await fleet.advance(2)

    assert await fleet.noted() == {}
    assert fleet.planes[0].manager.get(lease.name).claims == ()


async def test_claims_that_the_store_lost_are_put_back(fleet: LeaseFleet) -> None:
    """A replica that was away too long notes its standing claims again."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    fleet.claim(1, lease, ttl=600.0)
    await fleet.settle()
    fleet.stores[1].cut()
    await fleet.beat(0, engine, 60)
    assert await fleet.noted() == {}

    fleet.stores[1].heal()
    await fleet.beat(0, engine, 10)

    assert len(await fleet.noted()) == 1
    assert names(fleet.planes[0].manager.get(lease.name).claims) == ["h"]


async def test_a_claim_while_the_store_is_away_counts_later(fleet: LeaseFleet) -> None:
    """A holder is not put off: idle leases are renewed for longer than a store is away."""
    lease = await fleet.held_lease(0, await fleet.register(0))
    fleet.stores[1].cut()

    assert fleet.claim(1, lease).outcome is RenewalOutcome.RENEWED
    await fleet.advance(10)
    assert await fleet.noted() == {}
    fleet.stores[1].heal()
    await fleet.advance(10)

    assert names(fleet.planes[0].manager.get(lease.name).claims) == ["h"]


async def test_a_holder_is_told_of_once(fleet: LeaseFleet) -> None:
    """A session that was touched at two replicas; what is known of its time is told."""
    lease = await fleet.held_lease(0, await fleet.register(0))
    session = lease.session_key.name
    fleet.claim(0, lease, session, ttl=20.0)
    fleet.claim(1, lease, session, ttl=60.0)
    await fleet.settle()

    assert [plane.manager.get(lease.name).claims for plane in fleet.planes] == [
        (Claim(session, 20.0),),
        (Claim(session, 60.0),),
        (Claim(session, 0.0),),
    ]


async def test_claims_do_not_delay_a_release(fleet: LeaseFleet) -> None:
    """The engine is told at once; of those who claimed the lease, turns in flight are shown."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    for at in range(3):
        fleet.claim(at, lease, lease.session_key.name, ttl=600.0)
    fleet.claim(1, lease, "routers/a", ttl=600.0)
    fleet.claim(2, lease, "routers/b", ttl=600.0)
    await fleet.settle()
    await fleet.planes[1].manager.release(lease.name, lease.fencing_token)
    await fleet.settle()

    (directive,) = (await fleet.report(0, engine, held())).directives
    shown = [names(plane.manager.get(lease.name).claims) for plane in fleet.planes]
    await fleet.report(0, engine, EngineReport(ended=(("r1", EndReason.RELEASED),)))

    assert directive.release is EndReason.RELEASED
    # A replica tells of its first claim on a lease, which were the session's.
    assert shown == [[], ["routers/a"], ["routers/b"]]
    assert fleet.states(lease) == [LeaseState.ENDED] * 3
    assert await fleet.noted() == {}


async def test_claims_turn_local_with_the_home(fleet: LeaseFleet) -> None:
    """A replica that becomes the home counts its own claims, and tells nobody of them any more."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    fleet.claim(1, lease, "a", ttl=100.0)
    fleet.claim(2, lease, "b", ttl=100.0)
    await fleet.settle()

    await fleet.report(1, engine, full(told(lease)))

    assert names(fleet.planes[1].manager.get(lease.name).claims) == ["a", "b"]
    assert list(await fleet.noted()) == [f"{lease.lease_id}/replica-2"]


async def test_claims_at_the_old_home_stand(fleet: LeaseFleet) -> None:
    """It tells the new one of them."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    fleet.claim(0, lease, "a", ttl=100.0)

    await fleet.report(1, engine, full(told(lease)))

    assert list(await fleet.noted()) == [f"{lease.lease_id}/replica-0"]
    assert [names(plane.manager.get(lease.name).claims) for plane in fleet.planes] == [["a"]] * 3


async def test_the_end_of_a_lease_ends_its_claims(fleet: LeaseFleet) -> None:
    """Nothing is left of them anywhere."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    fleet.claim(1, lease, ttl=600.0)
    await fleet.settle()

    await fleet.report(0, engine, EngineReport(ended=(("r1", EndReason.RECLAIMED),)))

    assert await fleet.noted() == {}
    assert fleet.claim(1, lease).outcome is RenewalOutcome.NOT_FOUND


async def test_a_claim_on_a_lease_on_its_way_out_can_be_dropped(fleet: LeaseFleet) -> None:
    """And none can be made, at any replica."""
    lease = await fleet.held_lease(0, await fleet.register(0))
    fleet.claim(1, lease, ttl=600.0)
    await fleet.planes[0].manager.release(lease.name, lease.fencing_token)
    await fleet.settle()

    assert fleet.claim(1, lease).outcome is RenewalOutcome.NOT_FOUND
    assert fleet.claim(1, lease, drop=True).outcome is RenewalOutcome.NOT_FOUND
    await fleet.settle()
    assert await fleet.noted() == {}


@pytest.mark.parametrize("at", [0, 1])
async def test_a_claim_with_another_token_is_fenced(fleet: LeaseFleet, at: int) -> None:
    """Wherever it is made."""
    lease = await fleet.held_lease(0, await fleet.register(0))
    manager = fleet.planes[at].manager
    (result,) = manager.claim("h", [LeaseRenewal(lease.name, lease.fencing_token + 1)])

    assert result.outcome is RenewalOutcome.FENCED


async def test_a_lease_that_is_not_heard_of_yet_is_not_denied(fleet: LeaseFleet) -> None:
    """A holder that heard of it sooner is put off for a moment, and keeps what it has."""
    engine = await fleet.register(0)
    (directive,) = (await fleet.planes[0].report(engine, full(retention_of()))).directives
    lease = fleet.planes[0].manager.get(directive.lease)

    outcomes = [fleet.claim(1, lease).outcome]
    await fleet.settle()
    outcomes.append(fleet.claim(1, lease).outcome)

    assert outcomes == [RenewalOutcome.UNAVAILABLE, RenewalOutcome.RENEWED]


async def test_a_last_use_that_was_told_elsewhere(fleet: LeaseFleet) -> None:
    """The home ranks the lease last, until somebody claims it at any replica."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)

    async def worth() -> float:
        return float((await fleet.beat(0, engine, 12, every=12))[-1].worth)

    before = await worth()
    fleet.claim(1, lease, "sessions/s", drop=True, final=True)
    await fleet.settle()
    told, last = await fleet.noted(), await worth()
    fleet.claim(2, lease, "routers/a", ttl=5.0)
    await fleet.settle()

    assert told == {f"{lease.lease_id}/replica-1": ClaimNote(lease.fencing_token, (), final=True)}
    assert last < before / 5 < await worth()
    assert names(fleet.planes[0].manager.get(lease.name).claims) == []
    await fleet.report(0, engine, EngineReport(ended=(("r1", EndReason.RECLAIMED),)))
    assert await fleet.noted() == {}


async def test_a_last_use_does_not_keep_a_lease(fleet: LeaseFleet) -> None:
    """It is no claim: what nobody uses lapses as early as if it had been told at the home."""
    engine = await fleet.register(0)
    lease = await fleet.held_lease(0, engine)
    fleet.claim(1, lease, "sessions/s", drop=True, final=True)
    await fleet.settle()

    await fleet.beat(0, engine, 170, every=10)

    assert fleet.states(lease) == [LeaseState.ENDED] * 3
    assert await fleet.noted() == {}


async def test_a_last_use_of_a_lease_that_is_not_heard_of_yet(fleet: LeaseFleet) -> None:
    """Who tells of it is to tell again."""
    engine = await fleet.register(0)
    (directive,) = (await fleet.planes[0].report(engine, full(retention_of()))).directives
    lease = fleet.planes[0].manager.get(directive.lease)

    outcomes = [fleet.claim(1, lease, drop=True, final=True).outcome]
    await fleet.settle()
    outcomes.append(fleet.claim(1, lease, drop=True, final=True).outcome)

    assert outcomes == [RenewalOutcome.UNAVAILABLE, RenewalOutcome.RENEWED]
