"""A double of etcd, on a fake clock."""

import pytest

from tests.support.clock import FakeClock
from tests.support.fake_etcd import FakeEtcd


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def etcd(clock: FakeClock) -> FakeEtcd:
    return FakeEtcd(clock=clock)
