"""Several registries on one store."""

import asyncio
import uuid

import pytest

from kvplane_services.errors import AlreadyExists, Conflict, KvplaneError, NotFound
from kvplane_services.lease.model import EndReason, LeaseState
from kvplane_services.session.config import SessionConfig
from kvplane_services.session.model import SessionHints, SessionState
from kvplane_services.store.model import Removed, Synced, Upserted
from kvplane_services.store.paging import PageRequest
from tests.support.state_values import key_of
from tests.unit.session.registries import SYNCED, Registries
from tests.unit.session.remote_leases import ended, lease, upserted


async def test_any_replica_knows_any_session() -> None:
    """What leases say is seen at all of them, and one writes it down, once."""
    crowd = Registries()
    async with crowd.running("a", "b", "c") as replicas:
        await crowd.hear(SYNCED)
        before = crowd.shared.writes

        await crowd.hear(upserted(lease(1)), upserted(lease(2, "other")))

        assert crowd.shared.writes - before in {1, 2}
        for replica in replicas:
            assert replica.session().lease == "leases/l1"
            page = await replica.registry.list(PageRequest(), engine="engines/d0")
            assert [session.key.session_id for session in page.items] == ["other", "s"]
        assert len({replica.session().etag for replica in replicas}) == 1


async def test_what_one_replica_changes_the_others_see() -> None:
    """Hints, ends and deletions travel by the store, whoever looks after the session."""
    crowd = Registries()
    async with crowd.running("a", "b", "c") as (a, b, c):
        await a.registry.create(key_of(), hints=SessionHints(keep_for=60.0), ttl=120.0)
        with pytest.raises(AlreadyExists):
            await b.registry.create(key_of())
        await crowd.hear(SYNCED, upserted(lease(1)))
        await b.registry.update(key_of(), keep_for=0.0, final_turn=True)
        await crowd.settle()
        assert {SessionHints(final_turn=True)} == {each.session().hints for each in (a, b, c)}

        await c.registry.end(key_of())
        await crowd.settle()
        assert [each.state() for each in (a, b, c)] == [SessionState.ENDED] * 3
        await a.registry.delete(key_of())
        await crowd.settle()

        for replica in (a, b, c):
            with pytest.raises(NotFound):
                replica.session()
            page = await replica.registry.list(PageRequest())
            assert page.items == ()
        await b.registry.create(key_of())


async def test_a_creation_retried_at_another_replica() -> None:
    """The request id finds the session; another one's creation does not."""
    crowd = Registries()
    async with crowd.running("a", "b") as (a, b):
        request_id = str(uuid.uuid4())
        first = await a.registry.create(key_of(), ttl=90.0, request_id=request_id)
        again = await b.registry.create(key_of(), ttl=90.0, request_id=request_id)

        assert again == first
        with pytest.raises(AlreadyExists):
            await b.registry.create(key_of(), request_id=str(uuid.uuid4()))


async def test_changes_at_two_replicas_at_once() -> None:
    """Neither undoes the other; of two that were decided on the same etag one is refused."""
    crowd = Registries()
    async with crowd.running("a", "b") as (a, b):
        await crowd.hear(SYNCED, upserted(lease(1)))

        await asyncio.gather(
            a.registry.update(key_of(), final_turn=False),
            a.registry.touch(key_of(), 60.0),
            b.registry.touch(key_of(), 90.0),
            crowd.hear(upserted(lease(2))),
        )
        await crowd.settle()
        assert a.session() == b.session()
        assert a.session().turn_count == 2
        assert a.session().hints.keep_for in {60.0, 90.0}

        etag = a.session().etag
        outcomes = await asyncio.gather(
            a.registry.update(key_of(), keep_for=10.0, etag=etag),
            b.registry.update(key_of(), final_turn=True, etag=etag),
            return_exceptions=True,
        )
        assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 1
        await crowd.settle()
        assert a.session() == b.session()


async def test_a_turn_that_ends_at_one_replica_while_another_ends_the_session() -> None:
    """What leases say and what clients say meet in one record, whichever is first."""
    crowd = Registries()
    async with crowd.running("a", "b"):
        await crowd.hear(SYNCED, upserted(lease(1)))

        await asyncio.gather(
            crowd.hear(upserted(ended(1, EndReason.RELEASED))),
            crowd.other().registry.end(key_of()),
        )
        await crowd.settle()

        record = crowd.saved()
        assert record is not None
        assert (record.state, record.turns[0].end_reason) == (SessionState.ENDED, "RELEASED")


async def test_a_keeper_that_dies_before_it_writes() -> None:
    """Another replica finds what it had not written, and writes it."""
    crowd = Registries()
    async with crowd.running("a", "b", "c"):
        await crowd.hear(SYNCED, upserted(lease(1)))
        keeper, other = crowd.keeper(), crowd.other()
        keeper.store.cut(hangs=1e9)
        await crowd.hear(upserted(ended(1, EndReason.SUPERSEDED)), upserted(lease(2)))
        assert crowd.count() == 1
        assert other.session().turn_count == 2

        await keeper.kill()
        await crowd.advance(11)

        record = crowd.saved()
        assert record is not None
        assert [turn.lease_id for turn in record.turns] == ["l1", "l2"]
        assert (record.lease_id, record.turns[0].end_reason) == ("l2", "SUPERSEDED")


async def test_a_keeper_that_hears_no_leases() -> None:
    """It is alive and counts as the session's keeper, so that others wait, but not for ever."""
    crowd = Registries()
    async with crowd.running("a", "b", "c") as replicas:
        await crowd.hear(SYNCED)
        keeper = crowd.keeper()
        for replica in replicas:
            if replica is not keeper:
                replica.leases.send(upserted(lease(1)))
        await crowd.advance(9)
        assert crowd.count() == 0
        await crowd.advance(3)

        assert crowd.count() == 1
        assert keeper.session().lease == "leases/l1"


async def test_two_replicas_that_both_look_after_a_session() -> None:
    """Each turn is written once, and the record is one."""
    crowd = Registries()
    async with crowd.running("a", "b", alone=True) as (a, b):
        await crowd.hear(SYNCED)
        for number in range(1, 8):
            await crowd.hear(
                upserted(ended(number - 1, EndReason.SUPERSEDED)) if number > 1 else SYNCED,
                upserted(lease(number)),
            )
        await asyncio.gather(a.registry.touch(key_of()), b.registry.touch(key_of()))
        await crowd.settle()

        assert a.session() == b.session()
        assert crowd.count() == 7
        assert [turn.end_reason for turn in a.session().turns] == ["SUPERSEDED"] * 6 + [""]


async def test_a_kept_session_outlives_who_took_the_wish() -> None:
    """Another replica claims its leases for the whole of the time that was asked for."""
    crowd = Registries()
    async with crowd.running("a", "b", "c"):
        await crowd.hear(SYNCED, upserted(lease(1)))
        keeper = crowd.keeper()
        _, granted = await keeper.registry.touch(key_of(), 120.0)
        await crowd.advance(5)
        assert (granted, {name for name, _, _ in crowd.claimed}) == (120.0, {keeper.name})

        await keeper.kill()
        crowd.replicas.remove(keeper)
        at: list[float] = []
        for second in range(5, 140):
            before = len(crowd.claimed)
            await crowd.advance(1)
            if len(crowd.claimed) > before:
                at.append(second)

        gaps = [later - earlier for earlier, later in zip([0, *at], at, strict=False)]
        assert max(gaps) <= 20
        assert 110 <= at[-1] <= 121
        assert crowd.other().session().hints.keep_for == 0.0
        assert len({name for name, _, _ in crowd.claimed}) == 1


async def test_a_wish_is_kept_by_the_sessions_keeper() -> None:
    """The replica that was asked claims at once, the one that looks after the session goes on."""
    crowd = Registries()
    async with crowd.running("a", "b", "c"):
        await crowd.hear(SYNCED, upserted(lease(1)))
        other, keeper = crowd.other(), crowd.keeper()

        await other.registry.touch(key_of(), 60.0)
        await crowd.settle()
        assert {name for name, _, _ in crowd.claimed} == {other.name, keeper.name}
        await crowd.advance(15)
        await crowd.hear(upserted(lease(2)))

        assert [each.lease for _, each in other.leases.claimed] == ["leases/l1"]
        assert keeper.leases.claimed[-1][1].lease == "leases/l2"


async def test_a_session_is_forgotten_by_all_at_once() -> None:
    """A use at any replica keeps it at all; then it is forgotten everywhere, and in the store."""
    crowd = Registries()
    async with crowd.running("a", "b", "c") as replicas:
        await crowd.hear(SYNCED)
        await replicas[0].registry.create(key_of(), ttl=60.0)
        await crowd.advance(50)
        await crowd.other().registry.touch(key_of(), 1.0)
        await crowd.advance(50)
        assert [replica.state() for replica in replicas] == [SessionState.IDLE] * 3
        await crowd.advance(25)

        assert crowd.saved() is None
        for replica in replicas:
            with pytest.raises(NotFound):
                replica.session()


async def test_the_number_of_sessions_is_bounded_over_all() -> None:
    """The session idle longest makes room, at whichever replica a new one comes."""
    crowd = Registries(SessionConfig(max_sessions=10))
    async with crowd.running("a", "b") as replicas:
        await crowd.hear(SYNCED, upserted(lease(1, "leased")))
        for number in range(40):
            await replicas[number % 2].registry.create(key_of(f"s{number}"))
            await crowd.advance(1)

        for replica in replicas:
            page = await replica.registry.list(PageRequest())
            names = {session.key.session_id for session in page.items}
            assert names == {"leased", *(f"s{number}" for number in range(31, 40))}
        assert crowd.saved("s30") is None


async def test_watches_tell_what_any_replica_wrote() -> None:
    """A deleted session is Removed, and no part of what a watch begins with."""
    crowd = Registries()
    async with crowd.running("a", "b") as (a, b):
        await crowd.hear(SYNCED)
        await a.registry.create(key_of("deleted"))
        await a.registry.delete(key_of("deleted"))
        await a.registry.create(key_of())
        await crowd.settle()
        watch = b.registry.watch()
        first = [await anext(watch), await anext(watch)]
        assert isinstance(first[0], Upserted)
        assert first[0].value == b.session()
        assert isinstance(first[1], Synced)

        await a.registry.end(key_of())
        await a.registry.delete(key_of())

        following = [await anext(watch), await anext(watch)]
        assert isinstance(following[0], Upserted)
        assert following[0].value.state is SessionState.ENDED
        assert isinstance(following[1], Removed)
        with pytest.raises(KvplaneError):
            await anext(b.registry.watch(after=following[1].revision + 10_000_000))


async def test_a_lease_is_the_sessions_at_all_replicas_or_at_none() -> None:
    """What is being released is nobody's, also where that is heard late."""
    crowd = Registries()
    async with crowd.running("a", "b"):
        await crowd.hear(SYNCED, upserted(lease(1)))
        late, keeper = crowd.other(), crowd.keeper()
        keeper.leases.send(
            upserted(lease(1, state=LeaseState.RELEASING)),
            upserted(ended(1, EndReason.RELEASED)),
        )
        await crowd.settle()

        assert (late.state(), keeper.state()) == (SessionState.IDLE, SessionState.IDLE)
        late.leases.send(upserted(lease(1)), upserted(ended(1, EndReason.RELEASED)))
        await crowd.settle()
        assert late.session() == keeper.session()
