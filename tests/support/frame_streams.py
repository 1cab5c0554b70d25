"""Streams of frames without a network, for tests of what keeps them."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from kvplane.client.errors import KvplaneClientError

Request = TypeVar("Request")
Response = TypeVar("Response")


class Silence(Exception):
    """Raised by an answering function to leave a frame without an answer."""


class StreamDouble(Generic[Request, Response]):
    """A `FrameStream` whose answers a function gives; errors that it raises end the stream."""

    def __init__(self, answer: Callable[[Request], Response]) -> None:
        self._answer = answer
        self.in_flight = 0
        self.cancelled = False
        self._on_over: Callable[[], None] = lambda: None

    async def exchange(self, frame: Request) -> Response:
        """See `FrameStream.exchange`."""
        assert not self.cancelled, "a cancelled stream was used"
        assert self.in_flight == 0, "two frames in flight"
        self.in_flight += 1
        try:
            return self._answer(frame)
        except Silence:
            await asyncio.Event().wait()
            raise AssertionError from None
        finally:
            self.in_flight -= 1

    def on_over(self, callback: Callable[[], None]) -> None:
        """See `FrameStream.on_over`."""
        self._on_over = callback

    def end(self) -> None:
        """The other side ends the stream."""
        self._on_over()

    def cancel(self) -> None:
        """See `FrameStream.cancel`."""
        self.cancelled = True
        self._on_over()


class TransportDouble:
    """Implements `EngineTransport` and `RenewalTransport`.

    Args:
        answer: Answers each frame; may raise KvplaneClientError or Silence.
        register: Answers each registration; may raise KvplaneClientError.

    """

    def __init__(
        self, answer: Callable[[Any], Any], *, register: Callable[[Any], Any] | None = None
    ) -> None:
        self._answer = answer
        self._register = register
        self.streams: list[StreamDouble[Any, Any]] = []
        self.frames: list[Any] = []
        self.deregistered: list[Any] = []
        self.deregister_error: KvplaneClientError | None = None
        self.closed = False
        self.left: list[bool] = []
        self.addresses = ["127.0.0.1:1"]
        self.on_leave: Callable[[], None] = lambda: None

    @property
    def address(self) -> str:
        """See `EngineTransport.address`."""
        return self.addresses[len(self.left) % len(self.addresses)]

    def open(self) -> StreamDouble[Any, Any]:
        """See `EngineTransport.open`."""
        stream: StreamDouble[Any, Any] = StreamDouble(self._recorded)
        self.streams.append(stream)
        return stream

    async def register(self, request: Any, *, seconds: float) -> Any:
        """See `EngineTransport.register`."""
        assert self._register is not None
        return self._register(request)

    async def deregister(self, request: Any, *, seconds: float) -> None:
        """See `EngineTransport.deregister`."""
        if self.deregister_error is not None:
            raise self.deregister_error
        self.deregistered.append(request)

    async def leave(self, *, silent: bool = False) -> None:
        """See `EngineTransport.leave`."""
        self.left.append(silent)
        self.on_leave()

    async def aclose(self) -> None:
        """See `EngineTransport.aclose`."""
        self.closed = True

    def _recorded(self, frame: Any) -> Any:
        self.frames.append(frame)
        return self._answer(frame)
