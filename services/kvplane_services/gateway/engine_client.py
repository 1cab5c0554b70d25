"""Sends a leg to its engine, and sorts out what went wrong.

Nothing is retried here but a connection that the engine closed while it lay idle in the pool:
then the engine never saw the request.
"""

import io
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Self

import aiohttp

from kvplane_services.gateway.config import GatewayConfig

# uvicorn, under vLLM, closes connections that lie idle for 5 s.
_KEEPALIVE = 4.0
_MOST_STALE = 3
# Larger bodies are handed to the transport in pieces, so that the loop stays free in between.
_LARGE_BODY = 256 * 1024


@dataclass(frozen=True, slots=True)
class LegRequest:
    """One leg as sent: `url`, `headers` and `body`; durations in seconds, None for no limit.

    `silence` bounds each wait for bytes, `deadline` the whole leg.
    """

    url: str
    headers: Mapping[str, str]
    body: bytes
    silence: float | None = None
    deadline: float | None = None


class EngineFailed(Exception):
    """The engine did not answer, or broke off; `timed_out` if it was silent for too long.

    `answered` if it did answer, with a 5xx.
    """

    def __init__(self, message: str, *, timed_out: bool = False, answered: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.timed_out = timed_out
        self.answered = answered


class EngineClient:
    """Calls engines over pooled connections. Use it as an async context manager.

    Args:
        config: The gateway's.

    """

    def __init__(self, *, config: GatewayConfig) -> None:
        self._config = config
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        traces = aiohttp.TraceConfig()
        traces.on_connection_reuseconn.append(_note_reuse)
        self._session = aiohttp.ClientSession(
            # The router decides how much an engine gets; there is no second limit here.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE),
            cookie_jar=aiohttp.DummyCookieJar(),
            trace_configs=[traces],
            raise_for_status=False,
            # Reasoning models write long lines, and headers of ours come back in none.
            read_bufsize=2**16,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def send(self, request: LegRequest) -> AsyncGenerator[aiohttp.ClientResponse]:
        """Sends a leg; inside of the block the head of the answer is there.

        Leaving the block early closes the connection, by which the engine aborts the request.

        Raises:
            EngineFailed: There was no answer. Also for what breaks while the block reads it.

        """
        try:
            response = await self._open(request)
            async with response:
                yield response
        except TimeoutError as error:
            raise EngineFailed("did not answer in time", timed_out=True) from error
        except aiohttp.ClientConnectorError as error:
            raise EngineFailed(f"cannot be reached: {error.strerror or error}") from error
        except aiohttp.ClientError as error:
            raise EngineFailed(f"broke off: {str(error) or type(error).__name__}") from error

    async def _open(self, request: LegRequest) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("EngineClient is used outside of its context")
        timeout = aiohttp.ClientTimeout(
            total=request.deadline,
            sock_connect=self._config.connect_timeout,
            sock_read=request.silence,
        )
        stale = 0
        while True:
            connection = SimpleNamespace(reused=False)
            large = len(request.body) > _LARGE_BODY
            try:
                return await self._session.post(
                    request.url,
                    data=io.BytesIO(request.body) if large else request.body,
                    headers=request.headers,
                    timeout=timeout,
                    allow_redirects=False,
                    trace_request_ctx=connection,
                )
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                stale += 1
                if (
                    isinstance(error, aiohttp.ClientConnectorError)
                    or not connection.reused
                    or stale > _MOST_STALE
                ):
                    raise


async def _note_reuse(
    _session: aiohttp.ClientSession,
    context: SimpleNamespace,
    _params: aiohttp.TraceConnectionReuseconnParams,
) -> None:
    context.trace_request_ctx.reused = True
