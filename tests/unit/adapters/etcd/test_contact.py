import asyncio
from collections.abc import AsyncIterator

import pytest

from kvplane_services.adapters.etcd.backend import LeaseGone, NoRoom
from kvplane_services.adapters.etcd.contact import Contact
from kvplane_services.errors import StoreRefused, Unavailable, logged
from tests.support.clock import FakeClock


class Etcd:
    """What answers, or does not."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.failure: Exception | None = None
        self.seconds = 0.0
        self.calls = 0

    async def call(self) -> str:
        self.calls += 1
        await self.clock.sleep(self.seconds)
        if self.failure is not None:
            raise self.failure
        return "answer"


@pytest.fixture
def etcd(clock: FakeClock) -> Etcd:
    return Etcd(clock)


@pytest.fixture
async def contact(etcd: Etcd, clock: FakeClock) -> AsyncIterator[Contact]:
    contact = Contact(probe=etcd.call, clock=clock)
    running = asyncio.ensure_future(contact.run())
    await clock.advance(0)
    yield contact
    running.cancel()


async def test_answers_are_passed_on(contact: Contact, etcd: Etcd) -> None:
    """A call that works returns its result, and nobody else asks."""
    assert await contact.ask(etcd.call()) == "answer"
    assert contact.reachable
    assert etcd.calls == 1


async def test_it_is_away_from_the_first_failure_until_something_works(
    contact: Contact, etcd: Etcd, clock: FakeClock
) -> None:
    """A failure makes it unreachable at once, and it is asked until it answers."""
    etcd.failure = Unavailable("away", retry_after=3.0)
    with pytest.raises(Unavailable):
        await contact.ask(etcd.call())
    assert not contact.reachable

    await clock.advance(0)
    await clock.advance(60)
    assert not contact.reachable
    assert 30 <= etcd.calls <= 80

    etcd.failure = None
    await clock.advance(2)
    assert contact.reachable
    calls = etcd.calls
    await clock.advance(60)
    assert etcd.calls == calls


async def test_a_stream_that_fails_counts(contact: Contact, etcd: Etcd, clock: FakeClock) -> None:
    """A broken stream makes it unreachable until a call works."""
    contact.failed(Unavailable("broken", retry_after=1.0))
    assert not contact.reachable

    await clock.advance(0)

    assert contact.reachable


async def test_streams_are_tried_again_when_an_outage_is_over(
    contact: Contact, etcd: Etcd, clock: FakeClock
) -> None:
    """Whoever waits to try a stream again need not wait on when etcd answers."""
    etcd.failure = Unavailable("away", retry_after=3.0)
    contact.failed(etcd.failure)
    waiting = asyncio.ensure_future(contact.pause(1000))
    await clock.advance(0)
    await clock.advance(10)
    assert not waiting.done()

    etcd.failure = None
    await clock.advance(3)

    assert waiting.done()


async def test_a_stream_that_breaks_by_itself_is_not_tried_at_once(
    contact: Contact, clock: FakeClock
) -> None:
    """Where etcd answers all the while, a broken stream is tried again after its own wait."""
    contact.failed(Unavailable("broken", retry_after=1.0))
    waiting = asyncio.ensure_future(contact.pause(5))
    await clock.advance(0)
    assert contact.reachable
    await clock.advance(4)
    assert not waiting.done()

    await clock.advance(1)

    assert waiting.done()


async def test_refusals_are_outages_while_it_runs(
    contact: Contact, etcd: Etcd, caplog: pytest.LogCaptureFixture
) -> None:
    """A password that is no longer taken does not end a process: an operator may set it right."""
    contact.failed(Unavailable("broken", retry_after=1.0))
    etcd.failure = StoreRefused("no such user")

    for _ in range(3):
        with pytest.raises(Unavailable):
            await contact.ask(etcd.call())

    assert [record.message for record in caplog.records] == [
        "the store is away: broken",
        "the store is away: no such user",
    ]


_AWAY = (
    "the plane's store is away, and whether anything was changed is unknown: try again when it is "
    "back"
)
_FULL = (
    "the plane's store is full, and nothing was changed: try again when its operator has made room"
)


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (Unavailable("etcd at 10.0.0.7:2379 is silent", retry_after=3.0), _AWAY),
        (StoreRefused("etcd at 10.0.0.7:2379 wants a password"), _AWAY),
        (
            NoRoom("etcd at 10.0.0.7:2379 is full", retry_after=3.0),
            _FULL,
        ),
    ],
)
async def test_callers_are_not_told_where_etcd_is(
    contact: Contact,
    etcd: Etcd,
    caplog: pytest.LogCaptureFixture,
    failure: Unavailable | StoreRefused,
    told: str,
) -> None:
    """That is for the log, once; what an operator sees of a failure is what is behind it."""
    etcd.failure = failure

    for _ in range(3):
        with pytest.raises(Unavailable) as raised:
            await contact.ask(etcd.call())
        assert raised.value.message == told
        assert logged(raised.value) == failure.message
        assert raised.value.retry_after == getattr(failure, "retry_after", 1.0)

    (said,) = [record.message for record in caplog.records]
    assert said.endswith(failure.message)


async def test_at_the_start_it_is_said_where_etcd_is(etcd: Etcd, clock: FakeClock) -> None:
    """Whoever starts a process has to know what to set right."""
    etcd.failure = Unavailable("etcd at 10.0.0.7:2379 is silent", retry_after=3.0)

    with pytest.raises(Unavailable, match=r"10\.0\.0\.7"):
        await Contact(probe=etcd.call, clock=clock).ask(etcd.call())


async def test_a_lease_that_is_gone_is_an_answer(contact: Contact, etcd: Etcd) -> None:
    """etcd answered, though it has no such lease."""
    contact.failed(Unavailable("broken", retry_after=1.0))
    etcd.failure = LeaseGone()

    with pytest.raises(LeaseGone):
        await contact.ask(etcd.call())

    assert contact.reachable


async def test_an_etcd_that_is_full_is_there(contact: Contact, etcd: Etcd) -> None:
    """It answers what it is asked; that it takes no writes is for each of them to say."""
    etcd.failure = NoRoom("full", retry_after=1.0)

    with pytest.raises(NoRoom):
        await contact.ask(etcd.call())

    assert contact.reachable
    assert etcd.calls == 1


async def test_callers_who_give_up_raise_doubts(
    contact: Contact, etcd: Etcd, clock: FakeClock
) -> None:
    """Where callers wait for less than etcd may take, its silence shows all the same."""
    etcd.seconds, etcd.failure = 2.0, Unavailable("silent", retry_after=1.0)
    call = asyncio.ensure_future(contact.ask(etcd.call()))
    await clock.advance(0)
    await clock.advance(0.25)
    call.cancel()
    await clock.advance(0)
    assert contact.reachable

    await clock.advance(2.0)

    assert not contact.reachable
    assert etcd.calls >= 2


async def test_quick_cancellations_raise_none(
    contact: Contact, etcd: Etcd, clock: FakeClock
) -> None:
    """A caller that goes away for reasons of its own says nothing of etcd."""
    etcd.seconds = 2.0
    call = asyncio.ensure_future(contact.ask(etcd.call()))
    await clock.advance(0)
    await clock.advance(0.01)
    call.cancel()
    await clock.advance(0)
    await clock.advance(5)

    assert etcd.calls == 1
