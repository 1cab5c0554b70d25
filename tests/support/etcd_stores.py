"""Stores over an etcd, open and running, for tests."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from kvplane_services.adapters.etcd.backend import EtcdBackend
from kvplane_services.adapters.etcd.store import EtcdStore
from kvplane_services.clock import Clock, SystemClock
from kvplane_services.store.model import TableSpec
from tests.support.store_values import TEXTS


@asynccontextmanager
async def running_store(
    backend: EtcdBackend,
    *,
    prefix: str = "/kvplane/test/",
    tables: Sequence[TableSpec[Any]] = (TEXTS,),
    clock: Clock | None = None,
    backlog: int = 4096,
    bookmark_interval: float = 30.0,
) -> AsyncIterator[EtcdStore]:
    """A store that is open inside of the block, and closed after it."""
    store = EtcdStore(
        backend=backend,
        tables=tables,
        clock=clock or SystemClock(),
        prefix=prefix,
        backlog=backlog,
        bookmark_interval=bookmark_interval,
    )
    await store.open()
    running = asyncio.ensure_future(store.run())
    try:
        yield store
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert running.cancelled(), running.exception()
        await store.close()
