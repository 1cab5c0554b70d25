"""Calls through the package etcd3 that do not hold up the event loop."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import grpc

from kvplane.client.backoff import Backoff
from kvplane_services.adapters.etcd.config import EtcdConfig
from kvplane_services.adapters.etcd.etcd3_package import PackageClient, cause_of
from kvplane_services.adapters.etcd.grpc_failures import (
    AuthDisabled,
    Failure,
    StaleToken,
    explain,
)
from kvplane_services.adapters.etcd.grpc_token import Token
from kvplane_services.clock import Clock
from kvplane_services.errors import StoreRefused, Unavailable
from kvplane_services.etcd_api.v3 import rpc_pb2

_log = logging.getLogger(__name__)

R = TypeVar("R")

_RETRY_AFTER = 1.0
# Calls at once; more wait for a thread.
_THREADS = 16


class PackageCalls:
    """Runs methods of a `PackageClient` on threads, with this process's token and deadlines.

    Args:
        config: Whom to call, and how patiently.
        clock: Times attempts, and waits between them.

    """

    def __init__(self, *, config: EtcdConfig, clock: Clock) -> None:
        self.config = config
        self.clock = clock
        self.client = PackageClient(config)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="etcd3")
        self._token = Token(self._authenticate if config.user else None)
        self._closed = False

    async def once(self, method: Callable[..., R], *arguments: Any) -> R:
        """Calls a method, one time. Raises as `NodeCalls.once`."""
        return await self._call(method, *arguments, seconds=self.config.try_timeout)

    async def repeat(self, method: Callable[..., R], *arguments: Any, anonymous: bool = False) -> R:
        """Calls a method that may have its effect many times, until it is answered.

        Raises:
            Unavailable: No answer within the time for all attempts.
            StoreRefused: etcd will not serve this process.
            LeaseGone: There is no such etcd lease.
            HistoryGone: There is no such revision (any more).

        """
        backoff = Backoff(first=0.1, longest=1.0)
        deadline = self.clock.now() + self.config.timeout
        while True:
            seconds = min(self.config.try_timeout, deadline - self.clock.now())
            try:
                return await self._call(method, *arguments, seconds=seconds, anonymous=anonymous)
            except Unavailable:
                wait = backoff.next()
                if self._closed or self.clock.now() + wait >= deadline:
                    raise
            await self.clock.sleep(wait)

    async def aclose(self) -> None:
        """Closes the connection; what waits for an answer gets `Unavailable`. Idempotent."""
        self._closed = True
        self.client.close()
        # Their calls have ended with the connection.
        await asyncio.to_thread(self._threads.shutdown)

    def failure_of(self, error: Exception) -> Failure:
        """What an exception of the package's means."""
        if self._closed:
            return self._is_closed()
        said, code = cause_of(error)
        return self.explain(said, code=code)

    def explain(self, said: str, *, code: grpc.StatusCode | None = None) -> Failure:
        """What something that etcd said means."""
        return explain(said, address=self.config.target, config=self.config, code=code)

    async def _call(
        self,
        method: Callable[..., R],
        *arguments: Any,
        seconds: float,
        anonymous: bool = False,
    ) -> R:
        for fresh in (False, True):
            metadata = () if anonymous else await self._token.metadata()
            try:
                return await self._run(method, arguments, seconds=seconds, metadata=metadata)
            except StaleToken as error:
                # etcd looks at the token before anything else: nothing was done.
                if not self._token.expire(metadata) or fresh:
                    raise StoreRefused(
                        f"etcd at {self.config.target} does not take the token that it gave us"
                    ) from error
        raise AssertionError

    async def _run(self, method: Callable[..., R], arguments: tuple[Any, ...], **options: Any) -> R:
        if self._closed:
            raise self._is_closed()

        def call() -> R:
            try:
                return method(*arguments, **options)
            except Exception as error:
                # Whatever the package raises, etcd did not do what it was asked for.
                raise self.failure_of(error) from error

        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _is_closed(self) -> Unavailable:
        return Unavailable(
            f"the connection to etcd at {self.config.target} was closed", retry_after=_RETRY_AFTER
        )

    async def _authenticate(self) -> str:
        request = rpc_pb2.AuthenticateRequest(name=self.config.user, password=self.config.password)
        try:
            answer = await self.repeat(self.client.authenticate, request, anonymous=True)
        except AuthDisabled:
            _log.warning(
                "etcd asks for no password: anybody who reaches %s can change the store",
                self.config.target,
            )
            return ""
        return answer.token
