import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest

from kvplane_services.adapters.etcd.anchors import EtcdAnchors, lease_of
from kvplane_services.adapters.etcd.contact import Contact
from kvplane_services.errors import Unavailable
from tests.support.clock import FakeClock
from tests.support.fake_etcd import FakeClient, FakeEtcd

TTL = 30.0


class CountingClient(FakeClient):
    """Counts renewals and streams."""

    def __init__(self, etcd: FakeEtcd) -> None:
        super().__init__(etcd)
        self.renewed: list[tuple[float, int]] = []
        self.streams = 0

    async def keep_alive(self, leases: AsyncIterator[int]) -> AsyncIterator[tuple[int, int]]:
        self.streams += 1
        async for lease, left in super().keep_alive(leases):
            self.renewed.append((self._etcd.clock.now(), lease))
            yield lease, left


@pytest.fixture
def client(etcd: FakeEtcd) -> CountingClient:
    return CountingClient(etcd)


@pytest.fixture
async def anchors(client: CountingClient, clock: FakeClock) -> AsyncIterator[EtcdAnchors]:
    contact = Contact(probe=lambda: client.get(b""), clock=clock)
    anchors = EtcdAnchors(backend=client, contact=contact, clock=clock)
    running = asyncio.ensure_future(anchors.run())
    await clock.advance(0)
    yield anchors
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_ttls_are_whole_seconds(anchors: EtcdAnchors, etcd: FakeEtcd) -> None:
    """What etcd is asked for is no less than what was asked here."""
    for ttl in (0.2, 1.0, 1.1, 30.0):
        await anchors.open(ttl)

    assert [lease.ttl for lease in etcd.leases.values()] == [1, 1, 2, 30]


async def test_renewals_come_every_third_of_the_ttl(
    anchors: EtcdAnchors, client: CountingClient, clock: FakeClock
) -> None:
    """Each kept anchor is renewed a little before each third of its TTL, all on one stream."""
    names = [await anchors.open(TTL) for _ in range(20)]
    await anchors.open(TTL, keep=False)

    await clock.advance(0)
    await clock.advance(10 * TTL)

    assert client.streams == 1
    assert {lease for _, lease in client.renewed} == {lease_of(name) for name in names}
    for name in names:
        times = [at for at, lease in client.renewed if lease == lease_of(name)]
        waits = [later - at for at, later in itertools.pairwise(times)]
        assert all(0.79 * TTL / 3 <= wait <= TTL / 3 + 0.01 for wait in waits)
        assert len(set(waits)) > 10


async def test_who_takes_an_anchor_over_renews_it_at_once(
    anchors: EtcdAnchors, etcd: FakeEtcd, clock: FakeClock
) -> None:
    """Nobody knows how long ago its last keeper renewed it."""
    lease = etcd.grant(10)
    await clock.advance(9.5)

    anchors.keep(f"{lease:x}", 10.0)
    await clock.advance(0)
    await clock.advance(60)

    assert lease in etcd.leases


async def test_a_dropped_anchor_lapses(
    anchors: EtcdAnchors, etcd: FakeEtcd, clock: FakeClock
) -> None:
    """It is not renewed any more, and nobody is told of a loss."""
    anchor = await anchors.open(TTL)
    told = asyncio.ensure_future(anext(anchors.lost()))
    await clock.advance(0)
    await clock.advance(2 * TTL)

    anchors.drop(anchor)
    await clock.advance(2 * TTL)
    etcd.lapse()

    assert not etcd.leases
    assert not told.done()
    told.cancel()


async def test_all_are_renewed_after_an_outage(
    anchors: EtcdAnchors, client: CountingClient, etcd: FakeEtcd, clock: FakeClock
) -> None:
    """When etcd is back, everything is renewed within seconds, not all at one moment."""
    names = {lease_of(await anchors.open(TTL)) for _ in range(20)}
    await clock.advance(0)
    await clock.advance(5 * TTL)
    etcd.set(away=True)
    await clock.advance(40)
    client.renewed.clear()

    etcd.set(away=False)
    await clock.advance(7)

    assert {lease for _, lease in client.renewed} >= names - {None}
    assert len({at for at, _ in client.renewed}) > 10


async def test_a_lost_anchor_is_told_of_once(
    anchors: EtcdAnchors, client: CountingClient, etcd: FakeEtcd, clock: FakeClock
) -> None:
    """What etcd does not have any more is reported, and not renewed again."""
    gone, kept = await anchors.open(TTL), await anchors.open(TTL)
    lease = lease_of(gone)
    assert lease is not None
    etcd.end_lease(lease)
    lost = anchors.lost()

    await clock.advance(0)
    await clock.advance(TTL)
    assert await asyncio.wait_for(anext(lost), 1) == gone
    client.renewed.clear()
    again = asyncio.ensure_future(anext(lost))
    await clock.advance(3 * TTL)

    assert not again.done()
    assert {lease for _, lease in client.renewed} == {lease_of(kept)}
    again.cancel()


async def test_a_write_on_several_anchors_finds_the_lost_one(
    anchors: EtcdAnchors, etcd: FakeEtcd, clock: FakeClock
) -> None:
    """Where a write named several, etcd is asked which of them is gone, kept or not."""
    names = [await anchors.open(TTL), await anchors.open(TTL, keep=False)]
    gone = await anchors.open(TTL, keep=False)
    lease = lease_of(gone)
    assert lease is not None
    etcd.end_lease(lease)
    lost = anchors.lost()

    anchors.suspect([*names, gone])
    await clock.advance(0)

    assert await asyncio.wait_for(anext(lost), 1) == gone
    more = asyncio.ensure_future(anext(lost))
    await clock.advance(0)
    assert not more.done()
    more.cancel()


async def test_opening_while_etcd_is_away(anchors: EtcdAnchors, etcd: FakeEtcd) -> None:
    """There is no anchor without etcd."""
    etcd.set(away=True)

    with pytest.raises(Unavailable):
        await anchors.open(TTL)
