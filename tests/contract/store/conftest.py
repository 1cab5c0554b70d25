"""What every store is held to. A new adapter joins by adding a parameter to `opener`."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from kvplane_services.store.ports import Store, Table
from tests.contract.store import kinds
from tests.contract.store.kinds import Opener, Server
from tests.support.store_values import TEXTS


@pytest.fixture(
    params=[
        pytest.param(kinds.memory, id="memory"),
        pytest.param(kinds.fake_etcd, id="fake-etcd"),
        pytest.param(kinds.etcd, id="etcd"),
        pytest.param(kinds.etcd3, id="etcd3"),
    ]
)
async def opener(request: pytest.FixtureRequest) -> AsyncIterator[Opener]:
    make: Callable[[AsyncExitStack, Server], Awaitable[Opener]] = request.param
    async with AsyncExitStack() as stack:
        yield await make(stack, lambda: request.getfixturevalue("etcd_node"))


@pytest.fixture
async def store(opener: Opener) -> Store:
    return await opener()


@pytest.fixture
async def other(opener: Opener, store: Store) -> Store:
    """What another process has on the same data."""
    return await opener()


@pytest.fixture
def table(store: Store) -> Table[str]:
    return store.table(TEXTS)


@pytest.fixture
def others_table(other: Store) -> Table[str]:
    return other.table(TEXTS)
