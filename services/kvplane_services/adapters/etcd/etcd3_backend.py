"""An etcd client over the package etcd3, for deployments that have settled on it."""

from collections.abc import AsyncIterator, Sequence
from functools import partial

from kvplane_services.adapters.etcd.backend import (
    Compare,
    DeleteOp,
    Header,
    KeyValue,
    LeaseGone,
    PutOp,
    RangeResult,
    TxnResult,
    WatchBatch,
)
from kvplane_services.adapters.etcd.config import EtcdConfig
from kvplane_services.adapters.etcd.etcd3_calls import PackageCalls
from kvplane_services.adapters.etcd.etcd3_watch import watch_prefix
from kvplane_services.adapters.etcd.grpc_kv import (
    first_header,
    get_key,
    range_pages,
    range_prefix,
    txn_request,
    txn_result,
)
from kvplane_services.adapters.etcd.versions import check_version
from kvplane_services.clock import Clock
from kvplane_services.errors import InvalidRequest
from kvplane_services.etcd_api.v3 import rpc_pb2


class Etcd3Backend:
    """See `EtcdBackend`: the same promises as those of kvplane's own client, within limits.

    - It knows one endpoint. While that node is away, so is etcd.
    - It blocks, so each call takes one of a few threads while it runs, and about four times the
      CPU; each watch has two threads of its own.
    - Renewals of etcd leases go one after the other, each on a stream of its own: hundreds a
      second, not thousands.
    - Its watches do not resume. A break shows as `Unavailable`, and the store watches again from
      the revision that it had reached.
    - A batch of a watch comes in one message, however large it is.

    It is meant for up to some dozens of engines.

    Args:
        config: Where etcd is.
        clock: Times attempts and silence.

    Raises:
        InvalidRequest: There are several endpoints.

    """

    def __init__(self, config: EtcdConfig, *, clock: Clock) -> None:
        if len(config.endpoints) > 1:
            raise InvalidRequest(
                f"the package etcd3 takes one endpoint, not {config.target}: name one, or use "
                "etcd:// instead of etcd3://",
                field="store.url",
            )
        self._config = config
        self._calls = PackageCalls(config=config, clock=clock)
        self._read = partial(self._calls.repeat, self._calls.client.range)

    async def connect(self) -> Header:
        """See `EtcdBackend.connect`."""
        status = await self._calls.repeat(self._calls.client.status, rpc_pb2.StatusRequest())
        check_version(status.version, target=self._config.target)
        return await first_header(self._read, status)

    async def close(self) -> None:
        """See `EtcdBackend.close`."""
        await self._calls.aclose()

    async def get(self, key: bytes) -> tuple[Header, KeyValue | None]:
        """See `EtcdBackend.get`."""
        return await get_key(self._read, key)

    async def range(self, prefix: bytes) -> RangeResult:
        """See `EtcdBackend.range`."""
        return await range_prefix(self._read, prefix)

    def pages(self, prefix: bytes) -> AsyncIterator[RangeResult]:
        """See `EtcdBackend.pages`."""
        return range_pages(self._read, prefix)

    async def txn(
        self, compares: Sequence[Compare], operations: Sequence[PutOp | DeleteOp]
    ) -> TxnResult:
        """See `EtcdBackend.txn`."""
        request = txn_request(compares, operations)
        return txn_result(await self._calls.once(self._calls.client.txn, request))

    def watch(self, prefix: bytes, *, start_revision: int) -> AsyncIterator[WatchBatch]:
        """See `EtcdBackend.watch`."""
        return watch_prefix(self._calls, prefix, start_revision=start_revision)

    async def grant(self, ttl: int) -> int:
        """See `EtcdBackend.grant`."""
        return await self._calls.once(self._calls.client.grant, ttl)

    async def keep_alive(self, leases: AsyncIterator[int]) -> AsyncIterator[tuple[int, int]]:
        """See `EtcdBackend.keep_alive`."""
        async for lease in leases:
            yield lease, await self._calls.once(self._calls.client.refresh, lease)

    async def revoke(self, lease: int) -> None:
        """See `EtcdBackend.revoke`."""
        try:
            await self._calls.once(self._calls.client.revoke, lease)
        except LeaseGone:
            return
