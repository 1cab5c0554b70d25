"""One service of a plane: calls with a deadline, pages, and watches that go on.

What fails because its replica is away is asked of another one, if asking twice is harmless, and
what comes later goes there at once.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc.aio

from kvplane.client.backoff import Backoff
from kvplane.client.clock import Clock
from kvplane.client.errors import (
    AnswerTimeoutError,
    KvplaneClientError,
    UnavailableError,
    WatchCompactedError,
    from_rpc,
    moves_on,
)
from kvplane.client.replicas import Replicas, is_own_cancellation

_log = logging.getLogger(__name__)

T = TypeVar("T")
Stub = TypeVar("Stub")
Response = TypeVar("Response")

# How often a call is repeated after every replica was asked once: one that restarts alone is back
# in a moment.
_MORE_ATTEMPTS = 2
# Planes send a bookmark every 30 s: a watch that hears nothing for 90 s may be a dead one. It is
# noticed within twice that.
_SILENCE = 90.0
# What a watch goes on after: the server restarts, is slow, or cut a slow reader.
_TRANSIENT = frozenset(
    {"UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "INTERNAL", "UNKNOWN"}
)

_Unary = Callable[..., Awaitable[Response]]


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


class ServiceCalls(Generic[Stub]):
    """Calls one service. Methods are given by how they are found on its stub.

    Args:
        replicas: Whom to call.
        stub: Makes the service's stub on a channel.
        timeout: Deadline of each unary call, its repetitions included, in seconds.
        clock: Times deadlines, and waits between attempts.

    """

    def __init__(
        self,
        *,
        replicas: Replicas,
        stub: Callable[[grpc.aio.Channel], Stub],
        timeout: float,
        clock: Clock,
    ) -> None:
        self._replicas = replicas
        self._stub = stub
        self._timeout = timeout
        self._clock = clock

    async def call(
        self, method: Callable[[Stub], _Unary[Response]], request: Any, *, repeat: bool
    ) -> Response:
        """Calls a unary method.

        Args:
            method: Which, for example `lambda stub: stub.GetEngine`.
            request: What to send.
            repeat: Whether the call may have its effect twice. It then goes to another replica
                where the first is away or cannot serve it.

        Raises:
            KvplaneClientError: The call failed; its class says how.

        """
        answer, _ = await self.call_at(method, request, repeat=repeat)
        return answer

    async def call_at(
        self,
        method: Callable[[Stub], _Unary[Response]],
        request: Any,
        *,
        repeat: bool,
        address: str = "",
    ) -> tuple[Response, str]:
        """As `call`; also tells the address of the replica that answered.

        Args:
            method: See `call`.
            request: See `call`.
            repeat: See `call`.
            address: Whom to ask; where that one is no longer connected, nobody is.

        Raises:
            KvplaneClientError: The call failed; its class says how.

        """
        backoff = Backoff(first=0.05, longest=0.5)
        deadline = self._clock.now() + self._timeout
        failures = 0
        while True:
            asked = self._replicas.at(address) if address else self._replicas.in_use()
            if asked is None:
                raise UnavailableError(f"{address} is away", code="UNAVAILABLE")
            left = deadline - self._clock.now()
            try:
                bound = method(asked.stub(self._stub))
                return await bound(request, timeout=left), asked.address
            except grpc.aio.AioRpcError as failure:
                error = from_rpc(failure, target=self._replicas.target)
                if moves_on(error):
                    await self._replicas.leave(asked, silent=isinstance(error, AnswerTimeoutError))
                failures += 1
                if not repeat or not self._goes_on(error, failures, deadline):
                    raise error from failure
            if failures >= len(self._replicas):
                await self._clock.sleep(backoff.next())

    def _goes_on(self, error: KvplaneClientError, failures: int, deadline: float) -> bool:
        if not isinstance(error, UnavailableError) or self._clock.now() >= deadline:
            return False
        # An answer of the plane itself names a reason: another replica may see more, but asking
        # the same one again at once is in vain.
        more = 0 if error.reason else _MORE_ATTEMPTS
        return failures < len(self._replicas) + more

    async def pages(
        self,
        method: Callable[[Stub], _Unary[Any]],
        request: Any,
        items: Callable[[Any], Iterable[T]],
    ) -> AsyncGenerator[T, None]:
        """The items of all pages, fetched as they are needed.

        Raises:
            KvplaneClientError: A page could not be had.

        """
        while True:
            page = await self.call(method, request, repeat=True)
            for item in items(page):
                yield item
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def watch(
        self,
        method: Callable[[Stub], Callable[[Any], Any]],
        request_after: Callable[[int], Any],
        event_of: Callable[[Any], WatchEvent[T] | None],
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """The current state, then every change, over reconnects and changes of the replica.

        Ends only when closed. `Reset` announces that the state is sent from its beginning
        again: the plane forgot the changes since, or was cut before its state was complete.

        Raises:
            KvplaneClientError: The plane refuses the watch; repeating it would not help.

        """
        backoff = Backoff(first=0.1, longest=3.0)
        after = failures = 0
        started = away = False
        while True:
            asked = self._replicas.in_use()
            stream = _Heard(method(asked.stub(self._stub))(request_after(after)), self._clock)
            wait = 0.0
            try:
                if started and after == 0:
                    yield Reset()
                async for message in stream.messages():
                    if away:
                        _log.info("a watch at %s goes on", self._replicas.target)
                    started, away, failures = True, False, 0
                    backoff.reset()
                    event = event_of(message)
                    # In the initial state revisions are in no order: resume only after it.
                    if after or isinstance(event, Synced):
                        after = max(after, message.revision)
                    if event is not None:
                        yield event
                # A plane that ends a watch in good order is about to stop.
                await self._replicas.leave(asked)
            except grpc.aio.AioRpcError as failure:
                error = from_rpc(failure, target=self._replicas.target)
                after, wait = self._resume_point(error, after)
                if moves_on(error):
                    failures += 1
                    await self._replicas.leave(asked, silent=isinstance(error, AnswerTimeoutError))
                if not away and error.code == "UNAVAILABLE" and failures >= len(self._replicas):
                    away = True
                    _log.warning("a watch waits for %s: %s", self._replicas.target, error.message)
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


class _Heard:
    """The messages of a watch, which counts as dead once it has been silent for long."""

    def __init__(self, call: Any, clock: Clock) -> None:
        self._call = call
        self._clock = clock
        self._heard = False
        self._watching = asyncio.ensure_future(self._cancel_when_silent())

    async def messages(self) -> AsyncGenerator[Any, None]:
        """The messages. Raises AioRpcError."""
        try:
            async for message in self._call:
                self._heard = True
                yield message
        except asyncio.CancelledError:
            # Cancelled for its silence, or with its channel, but not with whoever reads it.
            if is_own_cancellation():
                raise
            raise grpc.aio.AioRpcError(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                grpc.aio.Metadata(),
                grpc.aio.Metadata(),
                "the watch was silent",
                "",
            ) from None

    def cancel(self) -> None:
        """Ends it at once."""
        self._watching.cancel()
        self._call.cancel()

    async def _cancel_when_silent(self) -> None:
        self._heard = True
        while self._heard:
            self._heard = False
            await self._clock.sleep(_SILENCE)
        self._call.cancel()
