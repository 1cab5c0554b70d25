"""Watches of etcd: each on a stream of its own, from one revision on."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from functools import partial

from kvplane.client.replicas import Replica
from kvplane_services.adapters.etcd.backend import (
    Changed,
    CompactedError,
    Deleted,
    Header,
    WatchBatch,
)
from kvplane_services.adapters.etcd.grpc_calls import NodeCalls
from kvplane_services.adapters.etcd.grpc_failures import StaleToken
from kvplane_services.adapters.etcd.grpc_kv import (
    check_history,
    key_value,
    prefix_end,
    range_at,
)
from kvplane_services.adapters.etcd.grpc_stream import NodeStream
from kvplane_services.errors import Unavailable
from kvplane_services.etcd_api.v3 import kv_pb2, rpc_pb2, rpc_pb2_grpc

_Stream = NodeStream[rpc_pb2.WatchRequest, rpc_pb2.WatchResponse]

# Signs of life that are asked for within the time that is allowed for silence.
_SIGNS = 3
_PROGRESS = rpc_pb2.WatchRequest(progress_request=rpc_pb2.WatchProgressRequest())
_DELETE = kv_pb2.Event.DELETE


async def watch_prefix(
    calls: NodeCalls, prefix: bytes, *, start_revision: int
) -> AsyncIterator[WatchBatch]:
    """See `EtcdBackend.watch`.

    A header's revision is that of the last change that was delivered. etcd before 3.4.25 and
    3.5.8 answers requests for progress with revisions whose changes it has yet to send.
    """
    read = partial(calls.repeat, range_at)
    cluster = await check_history(read, prefix, start_revision)
    stream = await _open(calls, prefix, start_revision)
    try:
        reached = start_revision - 1
        yield WatchBatch(Header(cluster, reached), ())
        # Parts of a batch that was too large for one message.
        parts: list[kv_pb2.Event] = []
        async with aclosing(_heard(calls, stream)) as responses:
            async for response in responses:
                if response.canceled:
                    raise await _end(response, stream)
                parts.extend(response.events)
                if response.fragment:
                    continue
                if parts:
                    reached = parts[-1].kv.mod_revision
                events = tuple(_event(part) for part in parts)
                parts.clear()
                yield WatchBatch(Header(cluster, reached), events)
    finally:
        await stream.close()


async def _open(
    calls: NodeCalls, prefix: bytes, start_revision: int, *, again: bool = False
) -> _Stream:
    """A stream on which the watch stands."""
    stream = await _Stream.open(calls, _watch_at)
    create = rpc_pb2.WatchCreateRequest(
        key=prefix or b"\0",
        range_end=prefix_end(prefix),
        start_revision=start_revision,
        fragment=True,
    )
    try:
        await _create(stream, create, seconds=calls.config.try_timeout)
    except StaleToken as error:
        await stream.close()
        if again:
            raise Unavailable(f"etcd takes no token: {error}", retry_after=1.0) from error
        # With a fresh token this time.
        return await _open(calls, prefix, start_revision, again=True)
    except BaseException:
        await stream.close()
        raise
    return stream


async def _create(stream: _Stream, create: rpc_pb2.WatchCreateRequest, *, seconds: float) -> None:
    await stream.send(rpc_pb2.WatchRequest(create_request=create))
    created = await stream.receive(seconds)
    if created is None:
        raise await stream.silent("does not answer in time")
    if created.canceled:
        raise await _end(created, stream)


async def _end(response: rpc_pb2.WatchResponse, stream: _Stream) -> Exception:
    """What to raise for a watch that etcd has ended."""
    if response.compact_revision:
        return CompactedError(response.compact_revision)
    return await stream.ended(response.cancel_reason or "it gives no reason")


async def _heard(calls: NodeCalls, stream: _Stream) -> AsyncGenerator[rpc_pb2.WatchResponse]:
    """All responses; etcd is asked for a sign of life when it says nothing."""
    heard = calls.clock.now()
    while True:
        try:
            response = await stream.receive(calls.config.silence / _SIGNS)
        except EOFError:
            raise await stream.silent("ended a watch") from None
        if response is not None:
            heard = calls.clock.now()
            yield response
        elif calls.clock.now() - heard >= calls.config.silence:
            raise await stream.silent("is silent")
        else:
            await stream.send(_PROGRESS)


def _event(event: kv_pb2.Event) -> Changed | Deleted:
    if event.type == _DELETE:
        return Deleted(event.kv.key, event.kv.mod_revision)
    return Changed(key_value(event.kv))


def _watch_at(node: Replica) -> Callable[..., object]:
    watch: Callable[..., object] = node.stub(rpc_pb2_grpc.WatchStub).Watch
    return watch
