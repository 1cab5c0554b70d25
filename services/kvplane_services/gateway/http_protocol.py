"""HTTP as the gateway speaks it: its bounds, and what is told to those who speak it badly."""

import asyncio
import logging
from typing import Final

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractAccessLogger
from aiohttp.http_exceptions import LineTooLong

from kvplane_services.gateway.openai_errors import OpenAIError

_log = logging.getLogger(__name__)

# Of all headers together, and of the request line. Credentials, baggage and the headers of
# several proxies fit in; vLLM's server takes more.
MAX_HEADER_BYTES: Final = 64 * 1024
_SERVER_ERROR = 500


class NoAccessLog(AbstractAccessLogger):
    """Requests carry keys, and turns are counted and traced elsewhere."""

    @property
    def enabled(self) -> bool:
        """Always false."""
        return False

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        """Does nothing."""


class HttpProtocol(web.RequestHandler):
    """One connection of a client.

    What goes wrong before there is a request that the application could answer is answered in
    OpenAI's shape, and is nothing to log: any client can cause it. Bodies are not decompressed
    (encoded_body.py does that).

    Args:
        server: Of the application's runner.
        loop: The running one.

    """

    def __init__(self, server: web.Server, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            server,
            loop=loop,
            access_log_class=NoAccessLog,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            auto_decompress=False,
        )

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = _SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what is no request, or to one whose handler failed.

        Raises:
            ConnectionError: An answer has begun already.

        """
        if status >= _SERVER_ERROR:
            # Logs, and raises if an answer has begun.
            super().handle_error(request, status, exc, message)
            error = OpenAIError(status, "the gateway failed", code="internal_error")
        else:
            _log.debug("refused a connection that does not speak HTTP: %s", type(exc).__name__)
            if request.writer.output_size > 0:
                raise ConnectionError("the answer before this has begun already")
            error = _not_http(status, exc, message)
        answer = error.response()
        # aiohttp would put its own name and version here, and no application hook is asked.
        answer.headers["Server"] = "kvplane"
        answer.force_close()
        return answer


async def without_server_header(_: web.BaseRequest, response: web.StreamResponse) -> None:
    """For `on_response_prepare`: nobody needs to know what software runs in which version."""
    response.headers.pop("Server", None)


async def expectation(request: web.Request) -> web.StreamResponse | None:
    """An `expect_handler`: asks for the body if the client waits for that."""
    expected = request.headers.get("Expect", "")
    if expected.lower() != "100-continue":
        return OpenAIError(
            417,
            f"the gateway cannot do what the header Expect wants: {expected[:64]!r}",
            code="expectation_failed",
        ).response()
    if request.version >= HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # The answer has not begun by that.
        request.writer.output_size = 0
    return None


def refuse_large_headers(request: web.BaseRequest) -> None:
    """Bounds all headers together; aiohttp bounds each.

    Raises:
        OpenAIError: They are too large.

    """
    if sum(len(name) + len(value) for name, value in request.raw_headers) > MAX_HEADER_BYTES:
        raise _headers_too_large()


def _headers_too_large() -> OpenAIError:
    return OpenAIError(
        431,
        f"the URL or the headers are larger than {MAX_HEADER_BYTES} bytes: send less in them",
        code="headers_too_large",
    )


def _not_http(status: int, exc: BaseException | None, message: str | None) -> OpenAIError:
    if isinstance(exc, LineTooLong):
        return _headers_too_large()
    # The lines after the first one quote the request, which may hold a key.
    why = (message or "").strip().partition("\n")[0].rstrip(":")
    return OpenAIError(
        status, f"this is not a valid HTTP request: {why or 'unknown'}", code="invalid_http"
    )
