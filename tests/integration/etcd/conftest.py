"""What tests with faults have to themselves: an etcd, and ways to it that can be cut."""

from collections.abc import Iterator

import pytest

from tests.support.etcd import EtcdNode, running_node
from tests.support.tcp_proxy import TcpProxies, tcp_proxies


@pytest.fixture
def node() -> Iterator[EtcdNode]:
    """An etcd of the test's own."""
    with running_node() as node:
        yield node


@pytest.fixture
def proxies() -> Iterator[TcpProxies]:
    """Ways to servers that can be cut."""
    with tcp_proxies() as proxies:
        yield proxies
