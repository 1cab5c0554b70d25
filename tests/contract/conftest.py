"""One etcd for all contract tests, which keep apart by their prefixes."""

from collections.abc import Iterator

import pytest

from tests.support.etcd import EtcdNode, running_node


@pytest.fixture(scope="session")
def etcd_node() -> Iterator[EtcdNode]:
    with running_node() as node:
        yield node
