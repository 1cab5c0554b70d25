"""What the registry makes of leases."""

import pytest

from kvplane_services.errors import (
    NotFound,
)
from kvplane_services.lease.model import EndReason
from kvplane_services.session.model import SessionState
from kvplane_services.store.model import Removed, Reset, Synced
from tests.support.state_values import handle_of, held, key_of, retention_of
from tests.unit.session.remote_leases import Remote, ended, lease, upserted
from tests.unit.session.running_registry import Running


async def test_a_turn_creates_its_session(running: Running) -> None:
    """The first retention of a key makes its session, with a lease and a turn."""
    lease = await running.turn("r1")

    session = running.session()
    (turn,) = session.turns
    assert (SessionState.RETAINED, lease.name, "engines/d0", 1) == (
        session.state,
        session.lease,
        session.engine,
        session.turn_count,
    )
    assert (lease.decision_id, lease.name, "engines/d0", 64, lease.create_time, "") == (
        turn.decision_id,
        turn.lease,
        turn.engine,
        turn.tokens,
        turn.finish_time,
        turn.end_reason,
    )


async def test_a_next_turn_takes_the_sessions_lease_over(running: Running) -> None:
    """The session follows its newest lease; the older turn tells why its lease ended."""
    await running.turn("r1")
    second = await running.turn("r2")
    await running.end("r1", EndReason.RELEASED)

    session = running.session()
    assert second.name == session.lease
    assert [turn.end_reason for turn in session.turns] == ["SUPERSEDED", ""]
    assert session.turn_count == 2


async def test_a_session_without_lease_is_idle(running: Running) -> None:
    """A lease that ends leaves the session known, and says why."""
    await running.turn("r1")
    await running.end("r1", EndReason.RECLAIMED)

    session = running.session()
    assert (session.state, session.lease, session.engine) == (SessionState.IDLE, "", "")
    assert session.turns[0].end_reason == "RECLAIMED"


async def test_a_refreshed_handle_is_no_turn(running: Running) -> None:
    """A changed handle of the same lease neither counts as a turn nor changes the session."""
    lease = await running.turn("r1")
    before = running.session()
    refreshed = retention_of(
        "r1", handle=handle_of(9.0), lease=lease.name, fencing_token=lease.fencing_token
    )
    await running.plane.report(running.engine, held(refreshed))
    await running.plane.settle()

    assert before == running.session()


async def test_history_is_bounded_and_the_count_is_not(running: Running) -> None:
    """The latest 32 turns are kept; all are counted."""
    for number in range(40):
        await running.turn(f"r{number}")

    session = running.session()
    assert session.turn_count == 40
    assert [f"decision-of-r{number}" for number in range(8, 40)] == [
        turn.decision_id for turn in session.turns
    ]


async def test_a_new_registry_learns_history_in_order(remote: Remote) -> None:
    """The full state comes by name; turns are ordered by grant, ended ones with their reason."""
    await remote.hear(
        upserted(lease(30)),
        upserted(ended(20, EndReason.SUPERSEDED)),
        upserted(ended(10, EndReason.RECLAIMED)),
        Synced(9),
    )

    session = remote.registry.get(key_of())
    assert [(turn.lease, turn.end_reason) for turn in session.turns] == [
        ("leases/l10", "RECLAIMED"),
        ("leases/l20", "SUPERSEDED"),
        ("leases/l30", ""),
    ]
    assert session.lease == "leases/l30"


async def test_what_a_fresh_start_leaves_out_is_over(remote: Remote) -> None:
    """After Reset only what is seen again, at the latest a grace after Synced, has a lease."""
    leases = [upserted(lease(number, name)) for number, name in enumerate("abc", start=1)]
    await remote.hear(*leases, Synced(1))

    await remote.hear(Reset(), upserted(lease(2, "b")), Synced(2))
    assert remote.state("a") is SessionState.RETAINED
    await remote.plane.clock.advance(29)
    await remote.hear(upserted(lease(3, "c"), 3))
    assert remote.state("a") is SessionState.RETAINED
    await remote.plane.clock.advance(2)

    assert remote.state("a") is SessionState.IDLE
    assert remote.state("b") is remote.state("c") is SessionState.RETAINED
    assert [remote.registry.get(key_of(name)).turn_count for name in "abc"] == [1, 1, 1]


async def test_a_fresh_start_does_not_revive_deleted_sessions(remote: Remote) -> None:
    """Leases that ended before a session was deleted are not its beginning."""
    await remote.hear(upserted(lease(1)), Synced(1))
    await remote.registry.delete(key_of())

    await remote.hear(Reset(), upserted(lease(1)), Synced(2))

    with pytest.raises(NotFound):
        remote.registry.get(key_of())


async def test_a_lease_that_vanishes_counts_for_a_grace(remote: Remote) -> None:
    """The store may have lost it, and its engine's home puts it back; else it is over."""
    await remote.hear(upserted(lease(1, "back")), upserted(lease(2, "gone")), Synced(1))

    await remote.hear(Removed("l1", 2), Removed("l2", 2))
    await remote.plane.clock.advance(20)
    await remote.hear(upserted(lease(1, "back"), 3))
    assert remote.state("gone") is SessionState.RETAINED
    await remote.plane.clock.advance(20)

    assert remote.state("back") is SessionState.RETAINED
    assert remote.state("gone") is SessionState.IDLE
    await remote.hear(upserted(lease(2, "gone"), 4))
    assert remote.state("gone") is SessionState.RETAINED
    assert remote.registry.get(key_of("gone")).turn_count == 1


async def test_an_older_leases_news_do_not_take_the_session_back(remote: Remote) -> None:
    """The larger token is the session's, in whichever order news come."""
    await remote.hear(Synced(1), upserted(lease(2)), upserted(lease(1)))

    session = remote.registry.get(key_of())
    assert session.lease == "leases/l2"
    assert session.turn_count == 2
