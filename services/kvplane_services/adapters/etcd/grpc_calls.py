"""Calls to whichever of etcd's nodes is in use, and to the next when it fails."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio

from kvplane.client.backoff import Backoff
from kvplane.client.replicas import Replica, Replicas, is_own_cancellation
from kvplane_services.adapters.etcd.backend import NoRoom
from kvplane_services.adapters.etcd.config import EtcdConfig
from kvplane_services.adapters.etcd.grpc_channel import open_etcd_channel
from kvplane_services.adapters.etcd.grpc_failures import (
    AuthDisabled,
    Failure,
    NotPermitted,
    StaleToken,
    failure_of,
)
from kvplane_services.adapters.etcd.grpc_token import Metadata, Token
from kvplane_services.clock import Clock
from kvplane_services.errors import StoreRefused, Unavailable
from kvplane_services.etcd_api.v3 import rpc_pb2, rpc_pb2_grpc

_log = logging.getLogger(__name__)

Response = TypeVar("Response")

# How a unary method is found at a node.
Method = Callable[[Replica], Callable[..., Awaitable[Response]]]

_RETRY_AFTER = 1.0


class Closed(Unavailable):
    """This client was closed: nothing will come of it any more."""


class NodeCalls:
    """Calls etcd with this process's token and deadlines.

    Args:
        config: Whom to call, and how patiently.
        clock: Times attempts, and waits between them.

    """

    def __init__(self, *, config: EtcdConfig, clock: Clock) -> None:
        self.config = config
        self.clock = clock
        self._nodes = Replicas(config.target, tls=config.tls, dial=open_etcd_channel, clock=clock)
        self._token = Token(self._authenticate if config.user else None)
        self._closed = False

    async def once(self, method: Method[Response], request: Any) -> Response:
        """Calls a method, one time.

        Raises:
            Unavailable: No answer. Whether the call had its effect is unknown.
            StoreRefused: etcd will not serve this process.
            LeaseGone: There is no such etcd lease. Nothing was done.
            HistoryGone: There is no such revision (any more).

        """
        return await self._call(self._nodes.in_use(), method, request, self.config.try_timeout)

    async def repeat(
        self, method: Method[Response], request: Any, *, anonymous: bool = False
    ) -> Response:
        """Calls a method that may have its effect many times, until a node answers.

        Args:
            method: Which.
            request: What to send.
            anonymous: Send no token.

        Raises:
            Unavailable: No node answered within the time for all attempts.
            StoreRefused: As `once`, and no node is better.
            LeaseGone: As `once`.
            HistoryGone: As `once`.

        """
        backoff = Backoff(first=0.1, longest=1.0)
        deadline = self.clock.now() + self.config.timeout
        failures: dict[str, Unavailable | StoreRefused] = {}
        attempts = 0
        while True:
            node = self._nodes.in_use()
            seconds = min(self.config.try_timeout, deadline - self.clock.now())
            try:
                return await self._call(node, method, request, seconds, anonymous=anonymous)
            except (NotPermitted, NoRoom, Closed):
                raise
            except (Unavailable, StoreRefused) as error:
                failures[node.address] = error
            attempts += 1
            wait = 0.0
            if attempts % len(self._nodes) == 0:
                for failure in failures.values():
                    if isinstance(failure, StoreRefused):
                        raise failure
                wait = backoff.next()
            if self.clock.now() + wait >= deadline:
                raise Unavailable(
                    "; ".join(failure.message for failure in failures.values()),
                    retry_after=_RETRY_AFTER,
                )
            if wait:
                await self.clock.sleep(wait)

    async def open_stream(
        self, method: Callable[[Replica], Callable[..., Any]]
    ) -> tuple[Any, Replica, Metadata]:
        """A stream to the node in use, which that is, and what the stream carries.

        Raises:
            Unavailable: No token could be had.
            StoreRefused: etcd refuses one.

        """
        node = self._nodes.in_use()
        metadata = await self._token.metadata()
        self._check_open(node)
        return method(node)(metadata=metadata), node, metadata

    async def failed(self, node: Replica, error: grpc.aio.AioRpcError) -> Failure:
        """What a failure means. Another node is in use from here on if it says nothing else."""
        failure = failure_of(error, address=node.address, config=self.config)
        # No other node has room if this one has none.
        if isinstance(failure, Unavailable | StoreRefused) and not isinstance(failure, NoRoom):
            await self.leave(node, silent=error.code() is grpc.StatusCode.DEADLINE_EXCEEDED)
        return failure

    async def leave(self, node: Replica, *, silent: bool) -> None:
        """Another node is in use from here on; see `Replicas.leave`."""
        await self._nodes.leave(node, silent=silent)

    def expire(self, metadata: Metadata) -> bool:
        """Forgets the token of a call that was refused; tells whether another can be had."""
        return self._token.expire(metadata)

    async def aclose(self) -> None:
        """Closes all connections; what waits for an answer gets `Unavailable`. Idempotent."""
        self._closed = True
        await self._nodes.aclose()

    async def _call(
        self,
        node: Replica,
        method: Method[Response],
        request: Any,
        seconds: float,
        *,
        anonymous: bool = False,
    ) -> Response:
        for fresh in (False, True):
            metadata = () if anonymous else await self._token.metadata()
            self._check_open(node)
            try:
                return await method(node)(request, timeout=seconds, metadata=metadata)
            except grpc.aio.AioRpcError as error:
                failure = await self.failed(node, error)
                # etcd looks at the token before anything else: nothing was done.
                if isinstance(failure, StaleToken):
                    if self.expire(metadata) and not fresh:
                        continue
                    failure = refused_token(node)
                raise failure from error
            except asyncio.CancelledError:
                if is_own_cancellation():
                    raise
                self._check_open(node)
                raise cut(node) from None
        raise AssertionError

    def _check_open(self, node: Replica) -> None:
        if self._closed:
            raise Closed(
                f"the client of etcd at {node.address} is closed", retry_after=_RETRY_AFTER
            )

    async def _authenticate(self) -> str:
        request = rpc_pb2.AuthenticateRequest(name=self.config.user, password=self.config.password)
        try:
            answer = await self.repeat(_authenticate_at, request, anonymous=True)
        except AuthDisabled:
            _log.warning(
                "etcd asks for no password: anybody who reaches %s can change the store",
                self.config.target,
            )
            return ""
        return answer.token


def cut(node: Replica) -> Unavailable:
    """What those get who wait for an answer on a connection that was given up, or closed."""
    return Unavailable(
        f"the connection to etcd at {node.address} was closed", retry_after=_RETRY_AFTER
    )


def refused_token(node: Replica) -> StoreRefused:
    """What comes of a token that was refused though it is fresh."""
    return StoreRefused(f"etcd at {node.address} does not take the token that it gave us")


def _authenticate_at(node: Replica) -> Callable[..., Awaitable[rpc_pb2.AuthenticateResponse]]:
    return node.stub(rpc_pb2_grpc.AuthStub).Authenticate
