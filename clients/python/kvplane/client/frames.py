"""Streams of self-contained frames: one in flight, answered in order by sequence.

Shared by `EngineLink` (heartbeats) and `LeaseKeeper` (renewals). The gRPC side is in
grpc_frames.py; tests bring their own.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from kvplane.client.clock import Clock
from kvplane.client.errors import AnswerTimeoutError, KvplaneClientError, UnavailableError


class Sequenced(Protocol):
    """A frame or an answer that carries a sequence number."""

    @property
    def sequence(self) -> int:
        """The number."""
        ...


Request_contra = TypeVar("Request_contra", bound=Sequenced, contravariant=True)
Response_co = TypeVar("Response_co", bound=Sequenced, covariant=True)
Result = TypeVar("Result")


class StreamEnded(UnavailableError):
    """The plane ended the stream in good order: it is about to stop."""

    def __init__(self) -> None:
        super().__init__("the plane ended the stream", code="UNAVAILABLE")


class FrameStream(Protocol[Request_contra, Response_co]):
    """One open stream."""

    async def exchange(self, frame: Request_contra) -> Response_co:
        """Sends a frame and returns the next answer.

        Raises:
            StreamEnded: The plane ended the stream in good order; open another.
            KvplaneClientError: The stream is over; open another.

        """
        ...

    def on_over(self, callback: Callable[[], None]) -> None:
        """Calls back in the event loop once the stream is over, if only because of `cancel`."""
        ...

    def cancel(self) -> None:
        """Ends the stream at once."""
        ...


async def exchange_within(
    stream: FrameStream[Any, Response_co], frame: Sequenced, *, seconds: float, clock: Clock
) -> Response_co:
    """Sends a frame and returns its answer.

    Raises:
        AnswerTimeoutError: None came within `seconds`.
        KvplaneClientError: The stream is over, or the answer was to another frame.

    """
    answer = await within(seconds, stream.exchange(frame), clock=clock)
    if answer.sequence != frame.sequence:
        raise KvplaneClientError(
            f"answer to frame {answer.sequence} where {frame.sequence} was asked",
            code="DATA_LOSS",
        )
    return answer


async def within(seconds: float, work: Coroutine[Any, Any, Result], *, clock: Clock) -> Result:
    """What `work` returns, if it does so within `seconds` of `clock`; else it is cancelled.

    Raises:
        AnswerTimeoutError: It did not.

    """
    working = asyncio.ensure_future(work)
    if await _first(working, clock.sleep(seconds)):
        return working.result()
    raise AnswerTimeoutError(f"no answer within {seconds:g} s", code="DEADLINE_EXCEEDED")


async def wait_set(event: asyncio.Event, seconds: float, *, clock: Clock) -> bool:
    """Waits for an event for at most `seconds` of `clock`; tells whether it is set."""
    if not event.is_set():
        await _first(asyncio.ensure_future(event.wait()), clock.sleep(seconds))
    return event.is_set()


async def until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Runs `work` until it returns or `stop` is set, whichever is first; then it is cancelled."""
    working = asyncio.ensure_future(work)
    if await _first(working, stop.wait()):
        working.result()


async def _first(working: asyncio.Future[Any], other: Coroutine[Any, Any, Any]) -> bool:
    """Whether `working` was done before `other`; leaves neither running."""
    waiting = asyncio.ensure_future(other)
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        return working.done()
    finally:
        if working.done() and not working.cancelled():
            # Noted, for a caller that is cancelled at the same time never asks.
            working.exception()
        pending = [one for one in (working, waiting) if not one.done()]
        for one in pending:
            one.cancel()
        if pending:
            await asyncio.wait(pending)
