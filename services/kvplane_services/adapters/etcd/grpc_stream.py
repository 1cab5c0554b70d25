"""A stream to one of etcd's nodes that tells silence from nothing new."""

import asyncio
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, cast

import grpc.aio
from google.protobuf.message import Message

from kvplane.client.replicas import Replica
from kvplane_services.adapters.etcd.grpc_calls import NodeCalls, cut, refused_token
from kvplane_services.adapters.etcd.grpc_failures import Failure, StaleToken, explain
from kvplane_services.adapters.etcd.grpc_token import Metadata
from kvplane_services.errors import StoreRefused, Unavailable

Request = TypeVar("Request")
Response = TypeVar("Response")

_RETRY_AFTER = 0.5


class NodeStream(Generic[Request, Response]):
    """A stream of requests and of responses; made by `open`, and to be closed.

    All methods raise what `NodeCalls.failed` makes of a failure of the stream, whereupon another
    node is in use.
    """

    def __init__(self, *, calls: NodeCalls, call: Any, node: Replica, metadata: Metadata) -> None:
        self._calls = calls
        self._call = call
        self._node = node
        self._metadata = metadata
        self._reading: asyncio.Future[Any] | None = None

    @classmethod
    async def open(cls, calls: NodeCalls, method: Callable[[Replica], Callable[..., Any]]) -> Self:
        """Opens one to the node in use. Raises as `NodeCalls.open_stream`."""
        call, node, metadata = await calls.open_stream(method)
        return cls(calls=calls, call=call, node=node, metadata=metadata)

    async def send(self, request: Request) -> None:
        """Sends a request."""
        try:
            await self._call.write(request)
        except grpc.aio.AioRpcError as error:
            raise await self._failure(error) from error
        except asyncio.InvalidStateError:
            # It has ended; the next response says how.
            return

    async def finish(self) -> None:
        """Says that there are no more requests; etcd then ends the stream."""
        try:
            await self._call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return

    async def receive(self, seconds: float) -> Response | None:
        """The next response; None if there is none within that time.

        Raises:
            EOFError: etcd ended the stream in good order.

        """
        reading = self._reading or asyncio.ensure_future(self._call.read())
        # Not cancelled when it takes too long: that would cancel the stream.
        self._reading = reading
        done, _ = await asyncio.wait({reading}, timeout=seconds)
        if not done:
            return None
        self._reading = None
        if reading.cancelled():
            raise cut(self._node)
        try:
            response = reading.result()
        except grpc.aio.AioRpcError as error:
            raise await self._failure(error) from error
        if isinstance(response, Message):
            return cast("Response", response)
        # gRPC's mark of the end.
        raise EOFError

    async def silent(self, what: str) -> Unavailable:
        """What to raise when etcd has been silent for too long."""
        await self._calls.leave(self._node, silent=True)
        return Unavailable(f"etcd at {self._node.address} {what}", retry_after=_RETRY_AFTER)

    async def ended(self, reason: str) -> Failure:
        """What to raise for a reason that etcd gave in a response."""
        failure = explain(reason, address=self._node.address, config=self._calls.config)
        return await self._judged(failure)

    async def close(self) -> None:
        """Ends it. Idempotent."""
        self._call.cancel()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            self._reading = None

    async def _failure(self, error: grpc.aio.AioRpcError) -> Failure:
        return await self._judged(await self._calls.failed(self._node, error))

    async def _judged(self, failure: Failure) -> Failure:
        if not isinstance(failure, StaleToken):
            return failure
        if self._calls.expire(self._metadata):
            return failure
        refused: StoreRefused = refused_token(self._node)
        return refused
