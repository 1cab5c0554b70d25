"""Every etcd client, against real etcds. Another client joins in tests/support/etcd_backends.py."""

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from kvplane_services.adapters.etcd.backend import EtcdBackend
from kvplane_services.adapters.etcd.config import EtcdConfig
from tests.support.certificates import Authority, ServerTls
from tests.support.etcd import EtcdNode, running_node
from tests.support.etcd_backends import BACKENDS, BACKENDS_OF_SEVERAL_ENDPOINTS, MakeBackend

_numbers = itertools.count()


@pytest.fixture(params=[pytest.param(make, id=name) for name, make in BACKENDS.items()])
async def make(request: pytest.FixtureRequest) -> AsyncIterator[MakeBackend]:
    """Makes clients, which are closed at the end."""
    async with closing(request.param) as make:
        yield make


@pytest.fixture(
    params=[pytest.param(make, id=name) for name, make in BACKENDS_OF_SEVERAL_ENDPOINTS.items()]
)
async def make_for_several(request: pytest.FixtureRequest) -> AsyncIterator[MakeBackend]:
    """Makes clients of several endpoints, which are closed at the end."""
    async with closing(request.param) as make:
        yield make


@asynccontextmanager
async def closing(make: MakeBackend) -> AsyncIterator[MakeBackend]:
    """Closes what is made inside of the block."""
    made: list[EtcdBackend] = []

    def make_one(config: EtcdConfig) -> EtcdBackend:
        made.append(make(config))
        return made[-1]

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


@pytest.fixture(scope="module")
def authority() -> Authority:
    """Who signs."""
    return Authority()


@pytest.fixture(scope="module")
def encrypted(authority: Authority) -> Iterator[EtcdNode]:
    """An etcd that speaks TLS only, to everybody."""
    with running_node(tls=ServerTls(authority)) as node:
        yield node
