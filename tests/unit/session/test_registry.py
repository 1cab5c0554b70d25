"""What the registry makes of leases and hints."""

import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from kvplane_services.errors import (
    AlreadyExists,
    Conflict,
    InvalidRequest,
    NotFound,
    Saturated,
    Unavailable,
)
from kvplane_services.lease.model import EndReason, Lease, LeaseState, RenewalOutcome
from kvplane_services.lease.ports import LeaseRenewal
from kvplane_services.lease.reports import EngineReport
from kvplane_services.session.config import SessionConfig
from kvplane_services.session.keeper import holder_of
from kvplane_services.session.model import Session, SessionHints, SessionKey, SessionState
from kvplane_services.session.registry import SessionRegistry
from kvplane_services.store.paging import PageRequest
from kvplane_services.store.ports import Event, Removed, Reset, Synced, Upserted
from tests.support.clock import FakeClock
from tests.support.state_plane import StatePlane
from tests.support.state_values import engine_of, full, handle_of, held, key_of, retention_of


class Running:
    """A running plane with one engine."""

    def __init__(self, plane: StatePlane) -> None:
        self.plane = plane
        self.engine = engine_of()

    async def start(self) -> None:
        self.engine = await self.plane.register(self.engine, ttl=300.0)
        await self.turn("first-report", "nobody")
        await self.end("first-report", EndReason.RECLAIMED)

    async def turn(self, retention_id: str, session_id: str = "s", **changes: Any) -> Lease:
        """A turn leaves a retention; the registry hears of its lease."""
        retention = retention_of(retention_id, session_id, **changes)
        answer = await self.plane.report(self.engine, held(retention))
        await self.plane.settle()
        names = {each.retention_id: each.lease for each in answer.directives}
        return self.plane.manager.get(names[retention_id])

    async def end(self, retention_id: str, reason: EndReason) -> None:
        await self.plane.report(self.engine, EngineReport(ended=((retention_id, reason),)))
        await self.plane.settle()

    def session(self, session_id: str = "s") -> Session:
        return self.plane.registry.get(key_of(session_id))


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with AsyncExitStack() as stack:
        plane = StatePlane()
        await stack.enter_async_context(plane.running())
        running = Running(plane)
        await running.start()
        yield running


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


async def test_what_the_final_turn_leaves_is_released(running: Running) -> None:
    """A client that says that its running turn is the last needs nothing kept."""
    await running.turn("r1")
    await running.plane.registry.update(key_of(), final_turn=True)

    lease = await running.turn("r2")

    assert running.plane.manager.get(lease.name).state is LeaseState.RELEASING
    session = running.session()
    assert (SessionState.ENDED, SessionHints()) == (session.state, session.hints)
    following = await running.turn("r3")
    assert running.session().lease == following.name


async def test_updates_set_what_they_name(running: Running) -> None:
    """A hint that is not named stays, and zero takes a wish back."""
    lease = await running.turn("r1")

    await running.plane.registry.update(key_of(), keep_for=60.0)
    assert running.plane.manager.get(lease.name).claims
    session = await running.plane.registry.update(key_of(), keep_for=0.0)

    assert session.hints == SessionHints()
    assert running.plane.manager.get(lease.name).claims == ()


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


async def test_negative_wishes_are_refused(running: Running) -> None:
    """A keeping time is not negative, and a refused creation leaves nothing behind."""
    with pytest.raises(InvalidRequest):
        await running.plane.registry.create(key_of(), hints=SessionHints(keep_for=-1.0))
    with pytest.raises(NotFound):
        running.session()
    await running.turn("r1")
    with pytest.raises(InvalidRequest):
        await running.plane.registry.touch(key_of(), -1.0)


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

    seen = [await anext(feed) for _ in range(3)]

    states = [event.value.state if isinstance(event, Upserted) else type(event) for event in seen]
    assert [SessionState.IDLE, SessionState.RETAINED, Removed] == states


def test_holders_of_long_names_are_short() -> None:
    """A holder's name has at most 256 bytes, and two sessions never share one."""
    long, other = key_of("x" * 500).name, key_of("x" * 499 + "y").name

    assert holder_of(key_of().name) == key_of().name
    assert len(holder_of(long).encode()) <= 256
    assert holder_of(long) != holder_of(other)


# -- A registry whose leases are elsewhere ------------------------------------------------------


class RemoteLeases:
    """A feed and a lease manager in another process, as a test scripts them."""

    def __init__(self) -> None:
        self.away = False
        self.claimed: list[tuple[str, LeaseRenewal]] = []
        self.released: list[tuple[str, int]] = []
        self._events: list[Event[Lease]] = []
        self._clock = FakeClock()

    def send(self, *events: Event[Lease]) -> None:
        self._events.extend(events)

    async def __call__(self) -> AsyncIterator[Event[Lease]]:
        while True:
            while self._events:
                yield self._events.pop(0)
            await self._clock.sleep(0)

    async def renew(
        self, holder: str, renewals: Sequence[LeaseRenewal]
    ) -> Sequence[RenewalOutcome]:
        self._check()
        self.claimed.extend((holder, renewal) for renewal in renewals)
        return [RenewalOutcome.RENEWED] * len(renewals)

    async def release(self, lease: str, fencing_token: int) -> None:
        self._check()
        self.released.append((lease, fencing_token))

    def _check(self) -> None:
        if self.away:
            raise Unavailable("the lease manager is away", retry_after=1.0)


def lease(token: int, session_id: str = "s", **changes: Any) -> Lease:
    values: dict[str, Any] = {
        "lease_id": f"l{token}",
        "session_key": key_of(session_id),
        "engine_id": "d0",
        "engine_epoch": 1,
        "retention_id": f"r{token}",
        "fencing_token": token,
        "tokens": 64,
        "blocks": 4,
        "handle": handle_of(),
    }
    return Lease(**(values | changes))


def ended(token: int, reason: EndReason, session_id: str = "s") -> Lease:
    return lease(token, session_id, state=LeaseState.ENDED, end_reason=reason)


def upserted(value: Lease, revision: int = 1) -> Upserted[Lease]:
    return Upserted(value.lease_id, value, revision)


class Remote:
    """A running registry on scripted leases."""

    def __init__(self) -> None:
        self.leases = RemoteLeases()
        self.plane = StatePlane()
        self.registry = SessionRegistry(
            table=self.plane.store.table(Session),
            leases=self.leases,
            control=self.leases,
            clock=self.plane.clock,
        )
        self.plane.registry = self.registry

    async def hear(self, *events: Event[Lease]) -> None:
        self.leases.send(*events)
        await self.plane.settle()


@pytest.fixture
async def remote() -> AsyncIterator[Remote]:
    remote = Remote()
    async with remote.plane.running():
        yield remote


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
    """After Reset only what is seen again before Synced has a lease."""
    await remote.hear(upserted(lease(1, "a")), upserted(lease(2, "b")), Synced(1))

    await remote.hear(Reset(), upserted(lease(2, "b")))
    assert remote.registry.get(key_of("a")).state is SessionState.RETAINED
    await remote.hear(Synced(2))

    assert remote.registry.get(key_of("a")).state is SessionState.IDLE
    assert remote.registry.get(key_of("b")).state is SessionState.RETAINED
    assert remote.registry.get(key_of("b")).turn_count == 1


async def test_a_fresh_start_does_not_revive_deleted_sessions(remote: Remote) -> None:
    """Leases that ended before a session was deleted are not its beginning."""
    await remote.hear(upserted(lease(1)), Synced(1))
    await remote.registry.delete(key_of())

    await remote.hear(Reset(), upserted(lease(1)), Synced(2))

    with pytest.raises(NotFound):
        remote.registry.get(key_of())


async def test_a_removed_lease_leaves_its_session_idle(remote: Remote) -> None:
    """A lease that is forgotten without an end is over all the same."""
    await remote.hear(upserted(lease(1)), Synced(1))

    await remote.hear(Removed("l1", 2))

    assert remote.registry.get(key_of()).state is SessionState.IDLE


async def test_an_older_leases_news_do_not_take_the_session_back(remote: Remote) -> None:
    """The larger token is the session's, in whichever order news come."""
    await remote.hear(Synced(1), upserted(lease(2)), upserted(lease(1)))

    session = remote.registry.get(key_of())
    assert session.lease == "leases/l2"
    assert session.turn_count == 2


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


@pytest.mark.parametrize(
    "values",
    [
        {"ttl": 1.0},
        {"min_ttl": 0.0},
        {"keep_for": 0.5},
        {"claim_interval": 16.0},
        {"sweep_interval": 0.0},
        {"max_sessions": 0},
        {"max_turns": 0},
    ],
)
def test_values_that_do_not_fit_together(values: dict[str, Any]) -> None:
    """A configuration under which claims would lapse is refused at construction."""
    with pytest.raises(ValueError, match="must"):
        SessionConfig(**values)
