"""Lets long-lived streams end well when the server stops.

A server that stops waits for its streams, and heartbeats and watches never end by themselves.
So when it stops, a client's stream reads as finished, after the frame in hand was answered, and
a watch ends after the event in hand. Clients see the stream close with OK, and dial again.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import grpc.aio

if TYPE_CHECKING:
    Handler: TypeAlias = grpc.RpcMethodHandler[Any, Any]
    Interceptor: TypeAlias = grpc.aio.ServerInterceptor[Any, Any]
else:
    # The classes take parameters only in the type stubs.
    Interceptor = grpc.aio.ServerInterceptor
    Handler = grpc.RpcMethodHandler


class DrainInterceptor(Interceptor):
    """Ends streams once `stopping` is set."""

    def __init__(self, *, stopping: asyncio.Event) -> None:
        self._stopping = stopping

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """See `grpc.aio.ServerInterceptor`."""
        handler: Any = await continuation(handler_call_details)
        if handler is None or not handler.response_streaming:
            return cast("Handler", handler)
        behaviour = handler.stream_stream or handler.unary_stream
        if not inspect.isasyncgenfunction(behaviour):
            # It writes for itself, as gRPC's own services do: those end with the grace.
            return cast("Handler", handler)
        if handler.request_streaming:
            make: Any = grpc.stream_stream_rpc_method_handler
            behaviour = self._until_stopped_in(behaviour)
        else:
            make = grpc.unary_stream_rpc_method_handler
            behaviour = self._until_stopped_out(behaviour)
        wrapped: Handler = make(
            behaviour,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
        return wrapped

    def _until_stopped_in(self, behaviour: Any) -> Any:
        async def call(requests: Any, context: Any) -> AsyncIterator[Any]:
            async for response in behaviour(_until(requests, self._stopping), context):
                yield response

        return call

    def _until_stopped_out(self, behaviour: Any) -> Any:
        async def call(request: Any, context: Any) -> AsyncIterator[Any]:
            async for response in _until(behaviour(request, context), self._stopping):
                yield response

        return call


_END = object()


async def _until(items: AsyncIterator[Any], stopping: asyncio.Event) -> AsyncIterator[Any]:
    iterator = aiter(items)
    stopped = asyncio.ensure_future(stopping.wait())
    following: asyncio.Future[Any] | None = None
    try:
        while not stopped.done():
            following = asyncio.ensure_future(_next(iterator))
            await asyncio.wait({following, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not following.done() or (item := following.result()) is _END:
                return
            yield item
    finally:
        stopped.cancel()
        if following is not None:
            following.cancel()
            # A call that was cancelled just as its stream ended leaves an end to be taken note of.
            await asyncio.gather(following, return_exceptions=True)


async def _next(iterator: AsyncIterator[Any]) -> Any:
    # A future cannot carry StopAsyncIteration well: nobody retrieves it on a cancelled call.
    return await anext(iterator, _END)
