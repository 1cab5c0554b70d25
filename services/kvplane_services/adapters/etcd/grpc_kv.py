"""Messages of etcd's key-value service, and what is read from its answers."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from kvplane.client.replicas import Replica
from kvplane_services.adapters.etcd.backend import (
    CompactedError,
    Compare,
    DeleteOp,
    Header,
    KeyValue,
    PutOp,
    RangeResult,
    TxnResult,
)
from kvplane_services.adapters.etcd.grpc_failures import HistoryGone, NotPermitted
from kvplane_services.errors import Unavailable
from kvplane_services.etcd_api.v3 import kv_pb2, rpc_pb2, rpc_pb2_grpc

# Asks for keys, until they are told.
Read = Callable[[rpc_pb2.RangeRequest], Awaitable[rpc_pb2.RangeResponse]]

# Keys of one answer.
PAGE = 1000
# So often a range starts over whose revision was compacted under it.
_STARTS = 3


def key_value(item: kv_pb2.KeyValue) -> KeyValue:
    """A key as etcd holds it."""
    return KeyValue(item.key, item.value, item.create_revision, item.mod_revision, item.lease)


def header(message: rpc_pb2.ResponseHeader) -> Header:
    """Who answered."""
    return Header(message.cluster_id, message.revision)


def prefix_end(prefix: bytes) -> bytes:
    """The first key after all keys with a prefix; zero, which etcd takes for no end, if none is."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b"\0"


def txn_request(
    compares: Sequence[Compare], operations: Sequence[PutOp | DeleteOp]
) -> rpc_pb2.TxnRequest:
    """Does the operations if all compares hold, else reads the compared keys."""
    return rpc_pb2.TxnRequest(
        compare=[
            rpc_pb2.Compare(
                result=rpc_pb2.Compare.EQUAL,
                target=rpc_pb2.Compare.MOD,
                key=compare.key,
                mod_revision=compare.mod_revision,
            )
            for compare in compares
        ],
        success=[_operation(operation) for operation in operations],
        failure=[
            rpc_pb2.RequestOp(request_range=rpc_pb2.RangeRequest(key=compare.key))
            for compare in compares
        ],
    )


def _operation(operation: PutOp | DeleteOp) -> rpc_pb2.RequestOp:
    if isinstance(operation, DeleteOp):
        return rpc_pb2.RequestOp(request_delete_range=rpc_pb2.DeleteRangeRequest(key=operation.key))
    return rpc_pb2.RequestOp(
        request_put=rpc_pb2.PutRequest(
            key=operation.key, value=operation.value, lease=operation.lease
        )
    )


def txn_result(answer: rpc_pb2.TxnResponse) -> TxnResult:
    """What a transaction did."""
    if answer.succeeded:
        deleted = tuple(
            response.response_delete_range.deleted > 0
            for response in answer.responses
            if response.HasField("response_delete_range")
        )
        return TxnResult(header(answer.header), succeeded=True, deleted=deleted)
    found = tuple(
        key_value(item) for response in answer.responses for item in response.response_range.kvs
    )
    return TxnResult(header(answer.header), succeeded=False, found=found)


async def first_header(read: Read, status: rpc_pb2.StatusResponse) -> Header:
    """Who a node is that told its status, once it has shown that it serves this client.

    Every node tells its status to everybody. A read needs a password and a quorum.
    """
    try:
        answer = await read(rpc_pb2.RangeRequest(key=b"\0"))
    except NotPermitted:
        # Knows us, though this key is not ours.
        return header(status.header)
    return header(answer.header)


async def get_key(read: Read, key: bytes) -> tuple[Header, KeyValue | None]:
    """See `EtcdBackend.get`."""
    answer = await read(rpc_pb2.RangeRequest(key=key))
    return header(answer.header), key_value(answer.kvs[0]) if answer.kvs else None


async def range_prefix(read: Read, prefix: bytes) -> RangeResult:
    """See `EtcdBackend.range`."""
    for _ in range(_STARTS):
        try:
            pages = [page async for page in range_pages(read, prefix)]
        except CompactedError:
            continue
        return RangeResult(pages[0].header, tuple(item for page in pages for item in page.items))
    raise Unavailable("etcd was compacted again and again while it was read", retry_after=1.0)


async def range_pages(read: Read, prefix: bytes) -> AsyncIterator[RangeResult]:
    """See `EtcdBackend.pages`."""
    request = rpc_pb2.RangeRequest(key=prefix or b"\0", range_end=prefix_end(prefix), limit=PAGE)
    first: Header | None = None
    while True:
        try:
            answer = await read(request)
        except HistoryGone as error:
            raise CompactedError(request.revision) from error
        if first is None:
            first = header(answer.header)
        items = tuple(key_value(item) for item in answer.kvs)
        yield RangeResult(first, items)
        if not answer.more:
            return
        # The rest as it was then, from the next possible key on.
        request.revision = first.revision
        request.key = items[-1].key + b"\0"


async def check_history(read: Read, prefix: bytes, start_revision: int) -> int:
    """The cluster's id, if it has all changes from a revision on. Raises CompactedError.

    etcd itself waits for ever for the revisions of a history that it has lost, and it may have
    dropped deletions of the very revision that it was compacted at.
    """
    request = rpc_pb2.RangeRequest(
        key=prefix or b"\0", keys_only=True, revision=max(0, start_revision - 1)
    )
    try:
        answer = await read(request)
    except HistoryGone as error:
        newest = await read(rpc_pb2.RangeRequest(key=prefix or b"\0"))
        raise CompactedError(newest.header.revision) from error
    return answer.header.cluster_id


def range_at(node: Replica) -> Callable[..., Awaitable[rpc_pb2.RangeResponse]]:
    """The method that reads."""
    return node.stub(rpc_pb2_grpc.KVStub).Range


def txn_at(node: Replica) -> Callable[..., Awaitable[rpc_pb2.TxnResponse]]:
    """The method that changes."""
    return node.stub(rpc_pb2_grpc.KVStub).Txn
