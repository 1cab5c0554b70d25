"""What an ended or deleted session was ended over does not bring it back."""

from typing import Any

import pytest

from kvplane_services.errors import NotFound
from kvplane_services.lease.model import EndReason, Lease, LeaseState
from kvplane_services.lease.ports import LeaseRenewal
from kvplane_services.session.model import SessionState
from kvplane_services.store.model import Removed, Reset
from tests.support.state_values import key_of
from tests.unit.session.registries import SYNCED, Registries
from tests.unit.session.remote_leases import Remote, ended, lease, upserted


def again(token: int, retention: int = 1, **changes: Any) -> Lease:
    """Another lease on what a turn left: its engine registered anew."""
    values: dict[str, Any] = {"retention_id": f"r{retention}", "engine_epoch": 2}
    return lease(token, **(values | changes))


async def test_an_engine_that_registers_anew_does_not_open_an_ended_session(
    remote: Remote,
) -> None:
    """Its retention gets another lease, which is released; a new turn opens the session."""
    await remote.hear(upserted(lease(1)), SYNCED)
    await remote.registry.end(key_of())

    await remote.hear(
        upserted(ended(1, EndReason.FENCED), 2), Removed("l1", 3), upserted(again(2), 4)
    )

    assert remote.state() is SessionState.ENDED
    assert remote.leases.released == [("leases/l1", 1), ("leases/l2", 2)]
    assert remote.registry.get(key_of()).turn_count == 1
    await remote.hear(upserted(lease(3), 5))
    assert remote.state() is SessionState.RETAINED
    assert remote.registry.get(key_of()).turn_count == 2


async def test_a_release_that_the_lease_manager_forgot(remote: Remote) -> None:
    """It started again before the engine was told: the same lease is live, and released again."""
    await remote.hear(upserted(lease(1)), SYNCED)
    await remote.registry.end(key_of())
    await remote.hear(upserted(lease(1, state=LeaseState.RELEASING)))
    remote.leases.released.clear()

    await remote.hear(Reset(), SYNCED, upserted(lease(1), 2))

    assert remote.state() is SessionState.ENDED
    assert remote.leases.released == [("leases/l1", 1)]


async def test_a_release_is_asked_for_until_it_is_seen(remote: Remote) -> None:
    """The lease manager may be away just then."""
    await remote.hear(upserted(lease(1)), SYNCED)
    await remote.registry.end(key_of())
    remote.leases.away = True
    remote.leases.released.clear()
    await remote.hear(upserted(again(2)))
    assert remote.leases.released == []

    remote.leases.away = False
    await remote.plane.clock.advance(30)
    assert remote.leases.released == [("leases/l2", 2)] * 3
    await remote.hear(upserted(again(2, state=LeaseState.RELEASING)))
    await remote.plane.clock.advance(30)

    assert len(remote.leases.released) == 3


async def test_a_deleted_session_stays_deleted(remote: Remote) -> None:
    """Not even under another lease does its retention bring it back; a new turn begins anew."""
    await remote.hear(upserted(lease(1)), upserted(lease(2)), SYNCED)
    await remote.registry.delete(key_of())

    await remote.hear(upserted(ended(2, EndReason.FENCED), 2), upserted(again(3, retention=2), 3))
    with pytest.raises(NotFound):
        remote.registry.get(key_of())
    assert remote.leases.released == [("leases/l2", 2), ("leases/l3", 3)]
    await remote.hear(upserted(lease(4), 4))

    session = remote.registry.get(key_of())
    assert [turn.lease for turn in session.turns] == ["leases/l4"]
    assert (session.turn_count, session.lease) == (1, "leases/l4")


async def test_a_session_created_under_a_deleted_ones_key(remote: Remote) -> None:
    """It is idle and has no history, whatever an engine still holds of the other one."""
    await remote.hear(upserted(lease(1)), SYNCED)
    await remote.registry.delete(key_of())
    await remote.registry.create(key_of(), ttl=60.0)

    await remote.hear(upserted(again(2)))

    session = remote.registry.get(key_of())
    assert (session.state, session.turns, session.turn_count) == (SessionState.IDLE, (), 0)
    assert remote.leases.released[-1] == ("leases/l2", 2)
    await remote.plane.clock.advance(62)
    with pytest.raises(NotFound):
        remote.registry.get(key_of())


async def test_what_a_final_turn_left_is_said_to_be_final(remote: Remote) -> None:
    """Once for each lease on it; nothing is released, and the session is not ended."""
    await remote.hear(upserted(lease(1)), SYNCED)
    await remote.registry.update(key_of(), final_turn=True)
    await remote.hear(upserted(lease(2)))
    await remote.hear(upserted(lease(2, tokens=65)))
    await remote.hear(upserted(ended(2, EndReason.FENCED)), upserted(again(3, retention=2)))
    await remote.hear(upserted(lease(4)))

    assert remote.state() is SessionState.RETAINED
    assert remote.leases.released == []
    assert [each for _, each in remote.leases.claimed] == [
        LeaseRenewal(f"leases/l{token}", token, drop=True, final=True) for token in (1, 2, 3)
    ]


async def test_a_last_turn_is_said_until_it_is_heard(remote: Remote) -> None:
    """The lease manager may be away just then."""
    await remote.hear(upserted(lease(1)), SYNCED)
    await remote.registry.update(key_of(), final_turn=True)
    remote.leases.claimed.clear()
    remote.leases.away = True
    await remote.hear(upserted(lease(2)))
    await remote.plane.clock.advance(10)

    remote.leases.away = False
    await remote.plane.clock.advance(60)

    assert [each.lease for _, each in remote.leases.claimed] == ["leases/l2"]


async def test_the_keeper_says_that_a_turn_was_the_last() -> None:
    """Whichever replica heard the hint, and whoever takes the turn in first."""
    crowd = Registries()
    async with crowd.running("a", "b") as replicas:
        await crowd.hear(upserted(lease(1)), SYNCED)
        await crowd.other().registry.update(key_of(), final_turn=True)
        await crowd.settle()
        for replica in replicas:
            replica.leases.claimed.clear()
        crowd.other().leases.send(upserted(lease(2)))
        await crowd.advance(2)

        crowd.keeper().leases.send(upserted(lease(2)))
        await crowd.settle()

        assert [each.lease for _, each in crowd.keeper().leases.claimed] == ["leases/l2"]
        assert crowd.other().leases.claimed == []


async def test_all_replicas_know_what_was_ended_over() -> None:
    """Also one that starts later; the session's keeper releases, and nobody else."""
    crowd = Registries()
    async with crowd.running("a", "b", "c") as (a, b, _):
        await crowd.hear(upserted(lease(1)), upserted(lease(2, "deleted")), SYNCED)
        await a.registry.end(key_of())
        await b.registry.delete(key_of("deleted"))
        await crowd.settle()
        for replica in crowd.replicas:
            replica.leases.released.clear()
        await crowd.add("d")
        crowd.replicas[-1].leases.send(SYNCED)

        await crowd.hear(
            upserted(again(3), 2), upserted(again(4, retention=2, session_key=key_of("deleted")), 3)
        )

        assert [replica.state() for replica in crowd.replicas] == [SessionState.ENDED] * 4
        for replica in crowd.replicas:
            with pytest.raises(NotFound):
                replica.session("deleted")
        assert sorted(crowd.released) == sorted(
            [(crowd.keeper().name, "leases/l3"), (crowd.keeper("deleted").name, "leases/l4")]
        )


async def test_a_plane_that_starts_again_knows_what_was_ended_over() -> None:
    """As long as its store has its data."""
    crowd = Registries()
    async with crowd.running("a") as (a,):
        await crowd.hear(upserted(lease(1)), upserted(lease(2, "deleted")), SYNCED)
        await a.registry.end(key_of())
        await a.registry.delete(key_of("deleted"))
        await a.stop()
        crowd.replicas.clear()
        b = await crowd.add("b")

        await crowd.hear(
            upserted(again(3)), upserted(again(4, retention=2, session_key=key_of("deleted")))
        )
        await crowd.hear(SYNCED)

        assert b.state() is SessionState.ENDED
        with pytest.raises(NotFound):
            b.session("deleted")
        assert sorted(b.leases.released) == [("leases/l3", 3), ("leases/l4", 4)]


async def test_a_keeper_that_dies_before_it_releases() -> None:
    """Another one does."""
    crowd = Registries()
    async with crowd.running("a", "b"):
        await crowd.hear(upserted(lease(1)), SYNCED)
        keeper, other = crowd.keeper(), crowd.other()
        await keeper.registry.end(key_of())
        await crowd.settle()
        keeper.leases.away = True
        await crowd.hear(upserted(again(2)))
        assert other.leases.released == []

        await keeper.kill()
        await crowd.advance(15)

        assert ("leases/l2", 2) in other.leases.released


async def test_a_turn_is_one_whatever_leases_follow(remote: Remote) -> None:
    """An engine that registers anew gets new leases on its old retentions, and no new turns."""
    await remote.hear(
        upserted(lease(1, decision_id="d1")), upserted(lease(2, decision_id="d2")), SYNCED
    )
    await remote.hear(
        upserted(ended(1, EndReason.SUPERSEDED)),
        upserted(lease(2, decision_id="d2", state=LeaseState.ENDED, end_reason=EndReason.FENCED)),
        upserted(again(3, retention=2, decision_id="d2")),
    )

    session = remote.registry.get(key_of())
    assert [turn.decision_id for turn in session.turns] == ["d1", "d2"]
    assert (session.turn_count, session.lease) == (2, "leases/l3")
    assert (session.turns[1].lease, session.turns[1].end_reason) == ("leases/l3", "")
    await remote.hear(
        upserted(lease(2, decision_id="d2", state=LeaseState.ENDED, end_reason=EndReason.FENCED))
    )
    assert remote.registry.get(key_of()) == session


async def test_a_turn_that_is_over_before_it_is_seen(remote: Remote) -> None:
    """Its lease began and ended in one batch: it is in the history all the same."""
    await remote.hear(upserted(lease(1)), SYNCED)
    await remote.hear(upserted(ended(2, EndReason.RECLAIMED), 2))
    await remote.hear(upserted(ended(3, EndReason.RECLAIMED, "new"), 3))
    await remote.hear(upserted(lease(4, "other", state=LeaseState.RELEASING), 4))

    session = remote.registry.get(key_of())
    assert [(turn.lease, turn.end_reason) for turn in session.turns] == [
        ("leases/l1", ""),
        ("leases/l2", "RECLAIMED"),
    ]
    assert session.turn_count == 2
    assert (remote.state("new"), remote.registry.get(key_of("new")).turn_count) == (
        SessionState.IDLE,
        1,
    )
    assert (remote.state("other"), remote.registry.get(key_of("other")).turn_count) == (
        SessionState.IDLE,
        1,
    )


async def test_a_forgotten_session_is_not_made_of_old_news(remote: Remote) -> None:
    """A feed that starts over tells again of leases that ended long ago."""
    await remote.hear(upserted(ended(1, EndReason.RECLAIMED)), SYNCED)
    assert remote.registry.get(key_of()).turn_count == 1
    await remote.plane.clock.advance(3700)

    await remote.hear(Reset(), upserted(ended(1, EndReason.RECLAIMED)), SYNCED)

    with pytest.raises(NotFound):
        remote.registry.get(key_of())
