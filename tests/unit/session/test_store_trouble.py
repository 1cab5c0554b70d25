"""Several registries, and a store or a lease manager that is in trouble."""

import asyncio

import pytest

from kvplane_services.adapters.records import SESSIONS
from kvplane_services.errors import NotFound, Unavailable
from kvplane_services.lease.model import EndReason
from kvplane_services.session.model import SessionHints, SessionState
from kvplane_services.store.commits import store_away
from tests.support.state_values import key_of
from tests.unit.session.registries import SYNCED, Registries
from tests.unit.session.remote_leases import ended, lease, upserted


async def test_a_replica_that_is_cut_off_and_comes_back() -> None:
    """It reads on, refuses what it cannot write, and has everything once it is back."""
    crowd = Registries()
    async with crowd.running("a", "b", "c"):
        await crowd.hear(SYNCED, upserted(lease(1)))
        cut, other = crowd.keeper(), crowd.other()
        cut.store.cut()
        with pytest.raises(Unavailable):
            await cut.registry.touch(key_of())
        with pytest.raises(Unavailable):
            await cut.registry.create(key_of("new"))
        await other.registry.touch(key_of(), 300.0)
        await crowd.hear(upserted(lease(2)), upserted(lease(3, "third")))
        assert cut.session().turn_count == 2
        await crowd.advance(15)
        assert crowd.count() == 2
        assert cut.session().hints.keep_for == 0.0

        cut.store.heal()
        await crowd.advance(3)

        assert cut.session().etag == other.session().etag
        assert cut.session().hints.keep_for == 300.0
        assert (crowd.count(), crowd.count("third")) == (2, 1)
        await cut.registry.touch(key_of())


async def test_calls_do_not_wait_for_a_store_that_hangs() -> None:
    """A call is refused within a moment, though nobody has noticed that the store is away."""
    crowd = Registries()
    async with crowd.running("a", "b") as (a, _):
        await crowd.hear(SYNCED, upserted(lease(1)))
        for replica in crowd.replicas:
            replica.store.cut(hangs=600.0, notices=False)

        calls = [
            asyncio.ensure_future(call)
            for call in (
                a.registry.touch(key_of()),
                a.registry.end(key_of()),
                a.registry.delete(key_of()),
                a.registry.update(key_of(), final_turn=True),
                a.registry.create(key_of("new")),
            )
        ]
        await crowd.advance(1.5)

        assert all(call.done() for call in calls)
        assert [type(call.exception()) for call in calls] == [Unavailable] * 5
        assert {str(call.exception()) for call in calls} == {store_away().message}
        assert a.state() is SessionState.RETAINED


async def test_changes_wait_while_the_store_is_away() -> None:
    """What leases say meanwhile is seen at once, and written once when the store is back."""
    crowd = Registries()
    async with crowd.running("a", "b") as replicas:
        await crowd.hear(SYNCED, upserted(lease(1)))
        for replica in replicas:
            replica.store.cut()
        await crowd.hear(
            upserted(ended(1, EndReason.SUPERSEDED)),
            upserted(lease(2)),
            *(upserted(lease(10 + number, f"s{number}")) for number in range(250)),
        )
        await crowd.advance(60)
        assert [replica.session().turn_count for replica in replicas] == [2, 2]
        assert crowd.count() == 1
        before = crowd.shared.writes

        for replica in replicas:
            replica.store.heal()
        await crowd.advance(3)

        assert crowd.count() == 2
        assert all(crowd.count(f"s{number}") == 1 for number in range(250))
        assert crowd.shared.writes - before < 20


async def test_a_store_that_lost_its_data() -> None:
    """Histories, hints and deletions are put back, and nothing is counted twice."""
    crowd = Registries()
    async with crowd.running("a", "b", "c") as replicas:
        await crowd.hear(
            upserted(ended(1, EndReason.RECLAIMED)),
            upserted(lease(2)),
            upserted(lease(3, "deleted")),
            upserted(lease(4, "ended")),
            SYNCED,
        )
        await replicas[0].registry.touch(key_of(), 300.0)
        await replicas[1].registry.delete(key_of("deleted"))
        await replicas[1].registry.end(key_of("ended"))
        await crowd.settle()
        before = replicas[0].session()

        crowd.shared.lose_everything()
        newcomer = await crowd.add("d")
        newcomer.leases.send(upserted(lease(2)), upserted(lease(4, "ended")), SYNCED)
        await crowd.hear(upserted(lease(5, "young")))
        await crowd.advance(3)

        for replica in crowd.replicas:
            session = replica.session()
            assert (session.etag, session.turns) == (before.etag, before.turns)
            assert replica.state("ended") is SessionState.ENDED
            assert replica.session("young").turn_count == 1
            with pytest.raises(NotFound):
                replica.session("deleted")
        assert (crowd.count(), crowd.count("ended")) == (2, 1)


@pytest.mark.parametrize("first", [0, 1])
async def test_a_call_right_after_the_store_lost_its_data(first: int) -> None:
    """It is carried out on what was known, before anybody has heard of the loss."""
    crowd = Registries()
    async with crowd.running("a", "b") as replicas:
        await crowd.hear(upserted(lease(1)), upserted(lease(2)), upserted(lease(3, "t")), SYNCED)
        await replicas[0].registry.touch(key_of(), 300.0)
        await replicas[0].registry.touch(key_of("t"), 300.0)
        await crowd.settle()

        crowd.shared.lose_everything()
        session = await replicas[first].registry.update(key_of(), final_turn=True)
        await replicas[first].registry.end(key_of("t"))
        await crowd.hear(upserted(lease(2, tokens=65)), upserted(lease(4, "u")))
        await crowd.advance(15)

        assert (session.hints, session.turn_count) == (SessionHints(final_turn=True), 2)
        for replica in replicas:
            assert replica.session().hints == SessionHints(final_turn=True)
            assert replica.session().turn_count == 2
            assert (replica.state("t"), replica.session("t").turn_count) == (SessionState.ENDED, 1)
        assert (crowd.count(), crowd.count("t"), crowd.count("u")) == (2, 1, 1)


async def test_a_plane_that_starts_again_on_its_store() -> None:
    """Histories, hints and idle times are there again; a lease that is gone for good is over."""
    crowd = Registries()
    async with crowd.running("a", "b") as (a, b):
        await crowd.hear(SYNCED, upserted(lease(1)), upserted(lease(2)), upserted(lease(3, "t")))
        await a.registry.touch(key_of(), 300.0)
        await crowd.settle()
        before = a.session()
        await a.stop()
        await b.kill()
        await crowd.advance(15)
        crowd.replicas.clear()

        c = await crowd.add("c")
        assert (c.session().etag, c.session().turns) == (before.etag, before.turns)
        await crowd.hear(SYNCED)
        await crowd.advance(20)
        await crowd.hear(upserted(lease(2), 2))
        await crowd.advance(20)

        assert (c.session().etag, c.session().turns) == (before.etag, before.turns)
        assert {("c", "leases/l2")} == {(name, lease) for name, lease, _ in crowd.claimed}
        assert c.state("t") is SessionState.IDLE


async def test_a_store_that_is_away_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """However often it is tried again."""
    crowd = Registries()
    async with crowd.running("a") as (replica,):
        await crowd.hear(SYNCED)
        replica.store.cut(notices=False)
        await crowd.hear(upserted(lease(1)))
        for _ in range(60):
            await crowd.clock.advance(1)
        replica.store.heal()
        await crowd.clock.advance(2)
        await crowd.settle()

        told = [each.getMessage() for each in caplog.records if "wait for" in each.getMessage()]
        assert told == ["changes of sessions wait for the store: the store is away"]
        assert await replica.store.table(SESSIONS).get(key_of().name) is not None


async def test_a_lease_manager_that_is_away_is_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """However many sessions are to be kept, and however often it is tried again."""
    crowd = Registries()
    async with crowd.running("a") as (replica,):
        sessions = [f"s{number}" for number in range(50)]
        for number, session_id in enumerate(sessions, start=1):
            await replica.registry.create(key_of(session_id), hints=SessionHints(keep_for=600.0))
            await crowd.hear(upserted(lease(number, session_id)))
        await crowd.hear(SYNCED)
        replica.leases.away = True
        await crowd.advance(60)

        told = [each.getMessage() for each in caplog.records if "not claimed" in each.getMessage()]
        assert len(told) == 1
        assert "(and 49 more)" in told[0]
        replica.leases.away = False
        replica.leases.claimed.clear()
        await crowd.advance(11)
        assert len(replica.leases.claimed) >= len(sessions)


async def test_wishes_that_end_while_the_store_is_away(caplog: pytest.LogCaptureFixture) -> None:
    """Not a line for each of them; and they end in the store once it is back."""
    crowd = Registries()
    async with crowd.running("a") as (replica,):
        await crowd.hear(SYNCED)
        for number in range(50):
            await replica.registry.create(key_of(f"s{number}"), hints=SessionHints(keep_for=20.0))
        replica.store.cut()
        await crowd.advance(60)

        told = [each for each in caplog.records if "shown as kept" in each.getMessage()]
        assert 1 <= len(told) <= 6
        replica.store.heal()
        await crowd.advance(11)
        assert crowd.saved("s49") is not None
        assert {replica.session(f"s{number}").hints.keep_for for number in range(50)} == {0.0}


async def test_a_forgotten_session_that_is_back_after_the_store_lost_its_data() -> None:
    """Its revisions are smaller than before, and the deletion was told of to nobody."""
    crowd = Registries()
    async with crowd.running("a", "b") as (a, b):
        await crowd.hear(SYNCED)
        await a.registry.create(key_of())
        await crowd.settle()
        # Forgotten to make room, say, just as the store loses everything.
        for replica in (a, b):
            entry = replica.registry._book.find(key_of().name)  # pyright: ignore[reportPrivateUsage]
            assert entry is not None
            replica.registry._book.forget(entry)  # pyright: ignore[reportPrivateUsage]
        crowd.shared.lose_everything()
        await crowd.settle()
        await crowd.advance(2)

        await a.registry.create(key_of())
        await crowd.settle()

        assert a.state() is b.state() is SessionState.IDLE
