import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from kvplane_services.grpc_drain import DrainInterceptor


async def busy(request: Any, context: Any) -> AsyncIterator[int]:
    """A watch that always has another event."""
    number = 0
    while True:
        yield number
        number += 1


async def echo(requests: AsyncIterator[int], context: Any) -> AsyncIterator[int]:
    """A stream that answers each frame."""
    async for request in requests:
        yield request


class Details:
    """See `grpc.HandlerCallDetails`."""

    method = "/kvplane.Test/Stream"
    invocation_metadata = ()


async def drained(handler: Any, stopping: asyncio.Event) -> Any:
    async def found(_: Any) -> Any:
        return handler

    details: Any = Details()
    return await DrainInterceptor(stopping=stopping).intercept_service(found, details)


async def test_a_busy_watch_ends_when_the_server_stops() -> None:
    """A stream that never has to wait ends as well, after the event in hand."""
    stopping = asyncio.Event()
    handler = await drained(grpc.unary_stream_rpc_method_handler(busy), stopping)
    seen: list[int] = []

    async for number in handler.unary_stream(None, None):
        seen.append(number)
        if number == 10:
            stopping.set()

    assert seen[:11] == list(range(11))
    assert len(seen) <= 12


async def test_a_busy_client_stream_ends_when_the_server_stops() -> None:
    """A client that keeps sending is answered up to the frame in hand."""
    stopping = asyncio.Event()
    handler = await drained(grpc.stream_stream_rpc_method_handler(echo), stopping)
    seen: list[int] = []

    async for number in handler.stream_stream(busy(None, None), None):
        seen.append(number)
        if number == 10:
            stopping.set()

    assert seen[:11] == list(range(11))
    assert len(seen) <= 12


async def test_a_stream_that_ends_by_itself_ends() -> None:
    """Nothing is added to or left out of a stream while the server runs."""

    async def three() -> AsyncIterator[int]:
        for number in range(3):
            yield number

    handler = await drained(grpc.stream_stream_rpc_method_handler(echo), asyncio.Event())

    assert [each async for each in handler.stream_stream(three(), None)] == [0, 1, 2]


async def test_other_handlers_are_left_as_they_are() -> None:
    """Unary methods, and services that write for themselves, are not touched."""

    async def unary(request: Any, context: Any) -> Any:
        return request

    for handler in (
        grpc.unary_unary_rpc_method_handler(unary),
        grpc.unary_stream_rpc_method_handler(unary),
        None,
    ):
        assert await drained(handler, asyncio.Event()) is handler
