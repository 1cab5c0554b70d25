import asyncio

import pytest

from kvplane_services.adapters.etcd.backend import PutOp
from kvplane_services.adapters.etcd.contact import Contact
from kvplane_services.adapters.etcd.sequence import EtcdSequence
from kvplane_services.errors import Unavailable
from tests.support.clock import FakeClock
from tests.support.fake_etcd import FakeEtcd


def sequence_of(etcd: FakeEtcd, clock: FakeClock) -> EtcdSequence:
    client = etcd.client()
    contact = Contact(probe=lambda: client.get(b"/s"), clock=clock)
    return EtcdSequence(key=b"/s", backend=client, contact=contact, clock=clock)


@pytest.fixture
def sequence(etcd: FakeEtcd, clock: FakeClock) -> EtcdSequence:
    return sequence_of(etcd, clock)


def microseconds(clock: FakeClock) -> int:
    return int(clock.wall().timestamp() * 1_000_000)


async def test_calls_at_once_share_a_write(sequence: EtcdSequence, etcd: FakeEtcd) -> None:
    """Whoever calls while a number is drawn waits for one write with all others who do."""
    numbers = await asyncio.gather(*(sequence.next() for _ in range(100)))

    assert len(set(numbers)) == 100
    assert etcd.txns <= 2


async def test_numbers_are_at_least_the_time(sequence: EtcdSequence, clock: FakeClock) -> None:
    """The first number is the time of day's microseconds; then they go on from the last."""
    first = await sequence.next()
    second = await sequence.next(5)
    third = await sequence.next()
    await clock.advance(1)

    assert first == microseconds(clock) - 1_000_000
    assert [second, third] == [first + 1, first + 6]
    assert await sequence.next() == microseconds(clock)


async def test_numbers_grow_over_a_loss_of_data(etcd: FakeEtcd, clock: FakeClock) -> None:
    """After etcd lost its counter numbers are larger all the same, whoever draws."""
    one, other = sequence_of(etcd, clock), sequence_of(etcd, clock)
    last = await one.next(10) + 9
    etcd.lose_data()

    assert await one.next() == last + 1
    assert await other.next() == last + 2

    await clock.advance(0.001)
    last = await one.next()
    etcd.lose_data()
    await clock.advance(0.001)
    assert await other.next() > last


async def test_a_call_that_is_cancelled_takes_nobody_along(
    sequence: EtcdSequence, etcd: FakeEtcd, clock: FakeClock
) -> None:
    """Those who wait for a write of somebody who gives up get their numbers."""
    etcd.set(silent=True)
    calls = [asyncio.ensure_future(sequence.next()) for _ in range(5)]
    await clock.wait_for_sleepers()

    calls[0].cancel()
    calls[3].cancel()
    etcd.set(silent=False)
    results = await asyncio.gather(*calls, return_exceptions=True)

    numbers = [result for result in results if isinstance(result, int)]
    assert len(set(numbers)) == 3
    assert [isinstance(result, asyncio.CancelledError) for result in results] == [
        True,
        False,
        False,
        True,
        False,
    ]


async def test_all_fail_together(sequence: EtcdSequence, etcd: FakeEtcd, clock: FakeClock) -> None:
    """When etcd is away, nobody waits for several failures in a row."""
    etcd.set(silent=True)
    calls = [asyncio.ensure_future(sequence.next()) for _ in range(50)]
    await clock.wait_for_sleepers()

    await clock.advance(2 * etcd.client().timeout)
    results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 1)

    assert all(isinstance(result, Unavailable) for result in results)
    etcd.set(silent=False)
    assert await sequence.next() > 0


async def test_a_counter_that_is_none(
    sequence: EtcdSequence, etcd: FakeEtcd, clock: FakeClock
) -> None:
    """What no process wrote there is written over."""
    etcd.write([PutOp(b"/s", b"junk")])

    assert await sequence.next() == microseconds(clock)
