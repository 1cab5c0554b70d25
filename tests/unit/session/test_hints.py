"""What the registry does at the wish of clients."""

import pytest

from kvplane_services.errors import (
    InvalidRequest,
    NotFound,
    Unavailable,
)
from kvplane_services.lease.model import EndReason, LeaseState, RenewalOutcome
from kvplane_services.lease.ports import LeaseRenewal
from kvplane_services.session.keeper import holder_of
from kvplane_services.session.model import SessionHints, SessionState
from kvplane_services.store.model import Synced
from tests.support.state_values import held, key_of
from tests.unit.session.remote_leases import Remote, lease, upserted
from tests.unit.session.running_registry import Running


async def test_a_touched_session_is_kept(running: Running) -> None:
    """Its lease is claimed at once and again until the time is over, then no more."""
    lease = await running.turn("r1")

    session, granted = await running.plane.registry.touch(key_of(), 300.0)

    assert granted == 300.0
    assert session.hints.keep_for == 300.0
    kept: list[bool] = []
    for _ in range(40):
        await running.plane.clock.advance(10)
        await running.plane.report(running.engine, held())
        kept.append(bool(running.plane.manager.get(lease.name).claims))
    assert kept[:29] == [True] * 29
    assert not any(kept[30:])
    assert running.session().hints.keep_for == 0.0
    assert running.plane.manager.get(lease.name).state is LeaseState.ACTIVE


async def test_a_touch_also_keeps_the_leases_that_follow(running: Running) -> None:
    """The wish is the session's: a lease granted before it is over is claimed as well."""
    await running.turn("r1")
    await running.plane.registry.touch(key_of(), 300.0)

    lease = await running.turn("r2")

    claims = running.plane.manager.get(lease.name).claims
    assert [key_of().name] == [claim.holder for claim in claims]


async def test_a_touch_without_a_lease_grants_nothing(running: Running) -> None:
    """The answer says that nothing is left to keep; a lease that comes in time is kept."""
    await running.plane.registry.create(key_of())

    _, granted = await running.plane.registry.touch(key_of(), 60.0)
    lease = await running.turn("r1")

    assert granted == 0.0
    assert running.plane.manager.get(lease.name).claims


@pytest.mark.parametrize(("asked", "granted"), [(0.0, 120.0), (0.1, 1.0), (1e6, 3600.0)])
async def test_keeping_times_are_clamped(running: Running, asked: float, granted: float) -> None:
    """A wish out of bounds is granted as far as the bounds go; zero means the default."""
    await running.turn("r1")

    assert granted == (await running.plane.registry.touch(key_of(), asked))[1]


async def test_an_ended_session_gives_its_lease_up(running: Running) -> None:
    """Its lease is released and unclaimed, and the session stays ended."""
    lease = await running.turn("r1")
    await running.plane.registry.touch(key_of(), 300.0)

    session = await running.plane.registry.end(key_of())
    again = await running.plane.registry.end(key_of())
    await running.plane.settle()

    assert (session.state, session.lease) == (SessionState.ENDED, "")
    assert session == again
    assert running.session().state is SessionState.ENDED
    (directive,) = (await running.plane.report(running.engine, held())).directives
    assert directive.release is EndReason.RELEASED
    await running.end("r1", EndReason.RELEASED)
    assert running.session().turns[0].end_reason == "RELEASED"
    assert running.plane.manager.get(lease.name).state is LeaseState.ENDED


async def test_a_later_turn_opens_an_ended_session_again(running: Running) -> None:
    """The client may change its mind."""
    await running.turn("r1")
    await running.plane.registry.end(key_of())

    lease = await running.turn("r2")

    assert (SessionState.RETAINED, lease.name) == (running.session().state, running.session().lease)


async def test_what_the_final_turn_leaves_ranks_last(running: Running) -> None:
    """It is kept, worth least, and for a shorter time; of the turn after it nothing was said."""
    other = await running.turn("r0", "other")
    await running.turn("r1")
    await running.plane.registry.update(key_of(), final_turn=True)

    lease = await running.turn("r2")
    worths = await running.worths()

    assert 0 < worths["r2"] < worths["r0"] / 5
    session = running.session()
    assert (SessionState.RETAINED, SessionHints()) == (session.state, session.hints)
    assert (lease.name, 2) == (session.lease, session.turn_count)
    for _ in range(16):
        await running.plane.clock.advance(10)
        await running.plane.report(running.engine, held())
    assert running.plane.manager.get(lease.name).end_reason is EndReason.EXPIRED
    assert running.plane.manager.get(other.name).state is LeaseState.ACTIVE


async def test_a_session_that_comes_back_takes_its_last_turn_back(running: Running) -> None:
    """What its turn left is there, is worth what it was from its claim on, and so is the next."""
    await running.turn("r1")
    before = await running.worths()
    await running.plane.registry.update(key_of(), final_turn=True)
    told = await running.worths()
    lease = running.session().lease
    token = running.plane.manager.get(lease).fencing_token

    renewal = LeaseRenewal(lease, token, 30.0)
    (outcome,) = await running.plane.manager.renew("routers/a", [renewal])
    back = await running.worths()

    assert outcome is RenewalOutcome.RENEWED
    assert told["r1"] < back["r1"] / 5
    assert back["r1"] == pytest.approx(before["r1"], rel=0.5)
    # The hint was of the turn that runs as well, and is used up by it.
    await running.turn("r2")
    await running.turn("r3")
    assert (await running.worths())["r3"] > told["r1"]


async def test_a_touch_takes_a_last_turn_back(running: Running) -> None:
    """Who will be back says so later than that no turn follows."""
    await running.turn("r1")
    await running.plane.registry.update(key_of(), final_turn=True)
    told = await running.worths()

    await running.plane.registry.touch(key_of(), 30.0)

    assert (await running.worths())["r1"] > told["r1"]


async def test_updates_set_what_they_name(running: Running) -> None:
    """A hint that is not named stays, and zero takes a wish back."""
    lease = await running.turn("r1")

    await running.plane.registry.update(key_of(), keep_for=60.0)
    assert running.plane.manager.get(lease.name).claims
    session = await running.plane.registry.update(key_of(), keep_for=0.0)

    assert session.hints == SessionHints()
    assert running.plane.manager.get(lease.name).claims == ()


async def test_negative_wishes_are_refused(running: Running) -> None:
    """A keeping time is not negative, and a refused creation leaves nothing behind."""
    with pytest.raises(InvalidRequest):
        await running.plane.registry.create(key_of(), hints=SessionHints(keep_for=-1.0))
    with pytest.raises(NotFound):
        running.session()
    await running.turn("r1")
    with pytest.raises(InvalidRequest):
        await running.plane.registry.touch(key_of(), -1.0)


async def test_while_the_lease_manager_is_away(remote: Remote) -> None:
    """Hints that need it are refused as Unavailable, and the registry follows on by itself."""
    await remote.hear(upserted(lease(1)), Synced(1))
    await remote.registry.touch(key_of(), 60.0)
    remote.leases.away = True

    with pytest.raises(Unavailable):
        await remote.registry.end(key_of())
    assert remote.registry.get(key_of()).state is SessionState.RETAINED
    await remote.plane.clock.advance(10)
    await remote.hear(upserted(lease(2)))
    assert remote.registry.get(key_of()).lease == "leases/l2"

    remote.leases.away = False
    remote.leases.claimed.clear()
    await remote.registry.touch(key_of(), 60.0)
    await remote.plane.clock.advance(10)

    assert {("leases/l2", 2)} == {
        (each.lease, each.fencing_token) for _, each in remote.leases.claimed
    }
    assert len(remote.leases.claimed) >= 2


async def test_a_kept_session_claims_no_longer_than_its_wish(remote: Remote) -> None:
    """A claim ends with the wish, not at the end of a whole claim's length."""
    await remote.hear(upserted(lease(1)), Synced(1))

    await remote.registry.touch(key_of(), 15.0)
    await remote.plane.clock.advance(10)

    assert [renewal.ttl for _, renewal in remote.leases.claimed] == [15.0, 5.0]


def test_holders_of_long_names_are_short() -> None:
    """A holder's name has at most 256 bytes, and two sessions never share one."""
    long, other = key_of("x" * 500).name, key_of("x" * 499 + "y").name

    assert holder_of(key_of().name) == key_of().name
    assert len(holder_of(long).encode()) <= 256
    assert holder_of(long) != holder_of(other)
