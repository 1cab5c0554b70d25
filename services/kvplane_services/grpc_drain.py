"""Lets long-lived streams end well when the server stops.

A server that stops waits for its streams, and heartbeats and watches never end by themselves.
So when it stops, a client's stream reads as finished, after the frame in hand was answered, and
a watch ends after the event in hand. Clients see the stream close with OK, and dial again.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import grpc

from kvplane_services.grpc_handlers import Handler, Interceptor, behaviour_of, with_behaviour


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
        if handler is None or not inspect.isasyncgenfunction(behaviour_of(handler)):
            # No stream, or one that writes for itself, as gRPC's own do: those end with the grace.
            return cast("Handler", handler)
        wrap = self._until_stopped_in if handler.request_streaming else self._until_stopped_out
        return with_behaviour(handler, wrap(behaviour_of(handler)))

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
