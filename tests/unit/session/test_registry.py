"""How sessions are created, read, changed and forgotten."""

import uuid

import pytest

from kvplane_services.errors import (
    AlreadyExists,
    Conflict,
    InvalidRequest,
    NotFound,
    Saturated,
)
from kvplane_services.lease.model import EndReason
from kvplane_services.session.config import SessionConfig
from kvplane_services.session.model import SessionHints, SessionKey, SessionState
from kvplane_services.store.model import Removed, Synced, Upserted
from kvplane_services.store.paging import PageRequest
from tests.support.state_plane import StatePlane
from tests.support.state_values import full, held, key_of
from tests.unit.session.running_registry import Running


async def test_an_etag_guards_a_write(running: Running) -> None:
    """A writer that did not see the last change is refused."""
    await running.turn("r1")
    stale = running.session().etag
    await running.turn("r2")

    with pytest.raises(Conflict):
        await running.plane.registry.update(key_of(), keep_for=1.0, etag=stale)
    with pytest.raises(Conflict):
        await running.plane.registry.delete(key_of(), etag=stale)
    fresh = running.session().etag
    changed = await running.plane.registry.update(key_of(), keep_for=1.0, etag=fresh)

    assert changed.etag != fresh


async def test_a_deleted_session_is_gone_and_stays_gone(running: Running) -> None:
    """Its lease is released, and the lease's last news do not bring it back; a new turn does."""
    lease = await running.turn("r1")

    await running.plane.registry.delete(key_of())
    await running.plane.registry.delete(key_of())
    await running.plane.settle()
    await running.end("r1", EndReason.RELEASED)

    with pytest.raises(NotFound):
        running.session()
    assert running.plane.manager.get(lease.name).end_reason is EndReason.RELEASED
    await running.turn("r2")
    assert running.session().turn_count == 1


async def test_sessions_can_be_created_ahead(running: Running) -> None:
    """Hints set early count for the first lease."""
    session, ttl = await running.plane.registry.create(
        key_of(), hints=SessionHints(keep_for=60.0), ttl=120.0
    )

    lease = await running.turn("r1")

    assert (session.state, ttl, session.hints.keep_for) == (SessionState.IDLE, 120.0, 60.0)
    assert running.plane.manager.get(lease.name).claims
    with pytest.raises(AlreadyExists):
        await running.plane.registry.create(key_of())


async def test_a_retried_creation_returns_the_first_answer(running: Running) -> None:
    """The same request id finds the first answer, though the session has changed since."""
    request_id = str(uuid.uuid4())
    first = await running.plane.registry.create(key_of(), request_id=request_id)
    await running.turn("r1")

    assert first == await running.plane.registry.create(key_of(), request_id=request_id)


@pytest.mark.parametrize("key", [SessionKey("", "m", "", "s"), SessionKey("t", "m", "", "x" * 513)])
async def test_keys_are_checked(running: Running, key: SessionKey) -> None:
    """A session cannot be created under a key that no turn could have."""
    with pytest.raises(InvalidRequest):
        await running.plane.registry.create(key)


@pytest.mark.parametrize("verb", ["touch", "end", "update"])
async def test_unknown_sessions_are_not_found(running: Running, verb: str) -> None:
    """Hints for a session that was never seen, or was forgotten, are answered so."""
    with pytest.raises(NotFound):
        await getattr(running.plane.registry, verb)(key_of("unknown"))


async def test_idle_sessions_are_forgotten(running: Running) -> None:
    """A session is forgotten when it had no lease and was not used for its time, not before."""
    await running.plane.registry.create(key_of("short"), ttl=60.0)
    await running.plane.registry.create(key_of("long"), ttl=600.0)

    await running.plane.clock.advance(59)
    assert running.session("short").state is SessionState.IDLE
    await running.plane.clock.advance(2)

    with pytest.raises(NotFound):
        running.session("short")
    assert running.session("long").state is SessionState.IDLE


async def test_a_live_lease_keeps_a_session(running: Running) -> None:
    """Idle time counts from the end of the last lease."""
    await running.plane.registry.create(key_of(), ttl=60.0)
    await running.turn("r1")
    for _ in range(10):
        await running.plane.clock.advance(10)
        await running.plane.report(running.engine, held())
    assert running.session().state is SessionState.RETAINED
    await running.end("r1", EndReason.RECLAIMED)

    await running.plane.clock.advance(59)
    assert running.session().state is SessionState.IDLE
    await running.plane.clock.advance(2)

    with pytest.raises(NotFound):
        running.session()


async def test_the_number_of_sessions_is_bounded() -> None:
    """The session idle longest makes room; those with a lease stay, even beyond the bound."""
    plane = StatePlane(sessions=SessionConfig(max_sessions=2))
    async with plane.running():
        running = Running(plane)
        running.engine = await plane.register(running.engine, ttl=300.0)
        await plane.report(running.engine, full())
        await running.turn("r1", "leased")
        await plane.registry.create(key_of("older"))
        await plane.registry.create(key_of("newer"))
        with pytest.raises(NotFound):
            running.session("older")

        await running.turn("r2", "also leased")
        await running.turn("r3", "leased as well")

        with pytest.raises(NotFound):
            running.session("newer")
        page = await plane.registry.list(PageRequest())
        assert len(page.items) == 3
        with pytest.raises(Saturated):
            await plane.registry.create(key_of("one more"))


async def test_listing(running: Running) -> None:
    """Filters narrow a listing."""
    await running.turn("r1", "a")
    await running.plane.registry.create(SessionKey("u", "n", "", "b"))

    async def names(**filters: str) -> set[str]:
        page = await running.plane.registry.list(PageRequest(), **filters)
        return {session.key.session_id for session in page.items}

    assert {"nobody", "a", "b"} == await names()
    assert {"b"} == await names(tenant="u")
    assert {"nobody", "a"} == await names(model="m")
    assert {"a"} == await names(engine="engines/d0")


async def test_the_feed_tells_of_sessions(running: Running) -> None:
    """Followers see what is created, changed and forgotten."""
    feed = running.plane.registry.feed()()
    while not isinstance(await anext(feed), Synced):
        pass
    await running.turn("r1")
    await running.plane.registry.delete(key_of())

    seen = [await anext(feed) for _ in range(2)]

    states = [event.value.state if isinstance(event, Upserted) else type(event) for event in seen]
    assert [SessionState.RETAINED, Removed] == states
