"""The stores that tests/contract/store holds to the port."""

import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from kvplane_services.adapters.etcd.backend import EtcdBackend
from kvplane_services.adapters.etcd.config import EtcdConfig
from kvplane_services.adapters.etcd.etcd3_backend import Etcd3Backend
from kvplane_services.adapters.etcd.grpc_backend import GrpcBackend
from kvplane_services.adapters.memory import MemoryStore
from kvplane_services.clock import SystemClock
from kvplane_services.store.ports import Store
from tests.support.etcd import EtcdNode
from tests.support.etcd_stores import running_store
from tests.support.fake_etcd import FakeEtcd
from tests.support.store_values import TEXTS, texts

BACKLOG = 16
BOOKMARKS = 0.05
TABLES = (TEXTS, texts("text"), texts("first"), texts("second"), texts("watched"), texts("other"))

# Makes another store on the same data, as another process would.
Opener = Callable[[], Awaitable[Store]]
Server = Callable[[], EtcdNode]


async def memory(_: AsyncExitStack, __: Server) -> Opener:
    """The embedded store: there is one in a process, and nobody else on its data."""
    store = MemoryStore(clock=SystemClock(), backlog=BACKLOG, bookmark_interval=BOOKMARKS)

    async def again() -> Store:
        return store

    return again


async def fake_etcd(stack: AsyncExitStack, _: Server) -> Opener:
    """The store in etcd, over the double of etcd that unit tests use."""
    return over(stack, FakeEtcd(clock=SystemClock()).client)


async def etcd(stack: AsyncExitStack, server: Server) -> Opener:
    """The store in etcd, over the project's own client."""
    config = EtcdConfig(endpoints=(server().endpoint,))
    return over(stack, lambda: GrpcBackend(config, clock=SystemClock()))


async def etcd3(stack: AsyncExitStack, server: Server) -> Opener:
    """The store in etcd, over the package etcd3."""
    config = EtcdConfig(endpoints=(server().endpoint,))
    return over(stack, lambda: Etcd3Backend(config, clock=SystemClock()))


def over(stack: AsyncExitStack, client: Callable[[], EtcdBackend]) -> Opener:
    """Stores over clients of one etcd, under a prefix of their own."""
    prefix = f"/kvplane/{uuid.uuid4().hex}/"

    async def another() -> Store:
        return await stack.enter_async_context(
            running_store(
                client(),
                prefix=prefix,
                tables=TABLES,
                backlog=BACKLOG,
                bookmark_interval=BOOKMARKS,
            )
        )

    return another
