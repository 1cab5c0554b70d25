"""Every etcd client, against real etcds. Another client joins in tests/support/etcd_backends.py."""

import itertools
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from kvplane_services.adapters.etcd.backend import EtcdBackend
from kvplane_services.adapters.etcd.config import EtcdConfig
from tests.support.etcd import EtcdNode, running_node
from tests.support.etcd_backends import BACKENDS, MakeBackend

_numbers = itertools.count()


@pytest.fixture(params=[pytest.param(make, id=name) for name, make in BACKENDS.items()])
async def make(request: pytest.FixtureRequest) -> AsyncIterator[MakeBackend]:
    """Makes clients, which are closed at the end."""
    made: list[EtcdBackend] = []

    def make_one(config: EtcdConfig) -> EtcdBackend:
        backend: EtcdBackend = request.param(config)
        made.append(backend)
        return backend

    yield make_one
    for backend in made:
        await backend.close()


@pytest.fixture
def node() -> Iterator[EtcdNode]:
    """An etcd of the test's own."""
    with running_node() as node:
        yield node


@pytest.fixture
async def backend(make: Callable[[EtcdConfig], EtcdBackend], etcd_node: EtcdNode) -> EtcdBackend:
    """A client that is connected to the etcd that all tests share; none may do that one harm."""
    made = make(EtcdConfig((etcd_node.endpoint,)))
    await made.connect()
    return made


@pytest.fixture
def prefix() -> bytes:
    """Keys of the test's own."""
    return b"/test/%d/" % next(_numbers)
