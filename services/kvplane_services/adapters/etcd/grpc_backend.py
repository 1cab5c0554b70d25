"""An etcd client over the project's own stubs of etcd's API, on grpc.aio."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial

from kvplane.client.replicas import Replica
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
from kvplane_services.adapters.etcd.grpc_calls import NodeCalls
from kvplane_services.adapters.etcd.grpc_keepalive import keep_alive
from kvplane_services.adapters.etcd.grpc_kv import (
    first_header,
    get_key,
    range_at,
    range_pages,
    range_prefix,
    txn_at,
    txn_request,
    txn_result,
)
from kvplane_services.adapters.etcd.grpc_watch import watch_prefix
from kvplane_services.adapters.etcd.versions import check_version
from kvplane_services.clock import Clock
from kvplane_services.etcd_api.v3 import rpc_pb2, rpc_pb2_grpc


class GrpcBackend:
    """See `EtcdBackend`.

    One node is in use at a time, and the next one when it fails. A call that was refused for an
    expired token is made again with a fresh one.

    Args:
        config: Where etcd is.
        clock: Times attempts and silence.

    """

    def __init__(self, config: EtcdConfig, *, clock: Clock) -> None:
        self._config = config
        self._calls = NodeCalls(config=config, clock=clock)
        self._read = partial(self._calls.repeat, range_at)

    async def connect(self) -> Header:
        """See `EtcdBackend.connect`."""
        status = await self._calls.repeat(_status_at, rpc_pb2.StatusRequest())
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
        return txn_result(await self._calls.once(txn_at, txn_request(compares, operations)))

    def watch(self, prefix: bytes, *, start_revision: int) -> AsyncIterator[WatchBatch]:
        """See `EtcdBackend.watch`."""
        return watch_prefix(self._calls, prefix, start_revision=start_revision)

    async def grant(self, ttl: int) -> int:
        """See `EtcdBackend.grant`."""
        answer = await self._calls.once(_grant_at, rpc_pb2.LeaseGrantRequest(TTL=ttl))
        return answer.ID

    def keep_alive(self, leases: AsyncIterator[int]) -> AsyncIterator[tuple[int, int]]:
        """See `EtcdBackend.keep_alive`."""
        return keep_alive(self._calls, leases)

    async def revoke(self, lease: int) -> None:
        """See `EtcdBackend.revoke`."""
        try:
            await self._calls.once(_revoke_at, rpc_pb2.LeaseRevokeRequest(ID=lease))
        except LeaseGone:
            return


def _status_at(node: Replica) -> Callable[..., Awaitable[rpc_pb2.StatusResponse]]:
    return node.stub(rpc_pb2_grpc.MaintenanceStub).Status


def _grant_at(node: Replica) -> Callable[..., Awaitable[rpc_pb2.LeaseGrantResponse]]:
    return node.stub(rpc_pb2_grpc.LeaseStub).LeaseGrant


def _revoke_at(node: Replica) -> Callable[..., Awaitable[rpc_pb2.LeaseRevokeResponse]]:
    return node.stub(rpc_pb2_grpc.LeaseStub).LeaseRevoke
