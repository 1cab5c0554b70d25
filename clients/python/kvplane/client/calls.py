"""One service at one address: calls with a deadline, pages, and watches that go on."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc.aio

from kvplane.client.backoff import Backoff
from kvplane.client.clock import Clock
from kvplane.client.errors import KvplaneClientError, WatchCompactedError, from_rpc

_log = logging.getLogger(__name__)

T = TypeVar("T")
Response = TypeVar("Response")

# What a watch goes on after: the server restarts, is slow, or cut a slow reader.
_TRANSIENT = frozenset(
    {"UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "INTERNAL", "UNKNOWN"}
)


@dataclass(frozen=True, slots=True)
class Upserted(Generic[T]):
    """A resource was created or changed, or is part of the initial state."""

    value: T
    revision: int


@dataclass(frozen=True, slots=True)
class Removed(Generic[T]):
    """A resource is gone; `value` is its last state, where the service sends it."""

    name: str
    value: T | None
    revision: int


@dataclass(frozen=True, slots=True)
class Synced:
    """Everything up to `revision` was delivered."""

    revision: int


@dataclass(frozen=True, slots=True)
class Reset:
    """The watch starts over with the full state: drop what is not seen again before Synced."""


WatchEvent = Upserted[T] | Removed[T] | Synced | Reset


class ServiceCalls:
    """Calls one service.

    Args:
        target: Address, for error messages.
        timeout: Deadline of each unary call, in seconds.
        clock: Waits between attempts of a watch.

    """

    def __init__(self, *, target: str, timeout: float, clock: Clock) -> None:
        self._target = target
        self._timeout = timeout
        self._clock = clock

    async def call(self, method: Callable[..., Awaitable[Response]], request: Any) -> Response:
        """Calls a unary method.

        Raises:
            KvplaneClientError: The call failed; its class says how.

        """
        try:
            return await method(request, timeout=self._timeout)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error, target=self._target) from error

    async def pages(
        self,
        method: Callable[..., Awaitable[Any]],
        request: Any,
        items: Callable[[Any], Iterable[T]],
    ) -> AsyncGenerator[T, None]:
        """The items of all pages, fetched as they are needed.

        Raises:
            KvplaneClientError: A page could not be had.

        """
        while True:
            page = await self.call(method, request)
            for item in items(page):
                yield item
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def watch(
        self,
        method: Callable[[Any], Any],
        request_after: Callable[[int], Any],
        event_of: Callable[[Any], WatchEvent[T] | None],
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """The current state, then every change, over reconnects.

        Ends only when closed. `Reset` announces that the state is sent from its beginning
        again: the plane forgot the changes since, or was cut before its state was complete.

        Raises:
            KvplaneClientError: The plane refuses the watch; repeating it would not help.

        """
        backoff = Backoff(first=0.1, longest=3.0)
        after = 0
        started = away = False
        while True:
            stream = method(request_after(after))
            wait = 0.0
            try:
                if started and after == 0:
                    yield Reset()
                async for message in stream:
                    if away:
                        _log.info("a watch at %s goes on", self._target)
                    started, away = True, False
                    backoff.reset()
                    event = event_of(message)
                    # In the initial state revisions are in no order: resume only after it.
                    if after or isinstance(event, Synced):
                        after = max(after, message.revision)
                    if event is not None:
                        yield event
            except grpc.aio.AioRpcError as failure:
                error = from_rpc(failure, target=self._target)
                after, wait = self._resume_point(error, after)
                if not away and error.code == "UNAVAILABLE":
                    away = True
                    _log.warning("a watch waits for %s: %s", self._target, error.message)
            finally:
                stream.cancel()
            await self._clock.sleep(max(wait, backoff.next()))

    @staticmethod
    def _resume_point(error: KvplaneClientError, after: int) -> tuple[int, float]:
        if isinstance(error, WatchCompactedError) and after:
            return 0, 0.0
        if error.code not in _TRANSIENT:
            raise error
        return after, error.retry_after or 0.0
