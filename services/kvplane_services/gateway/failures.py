"""What the client is told when an engine refuses a leg or fails."""

from http import HTTPStatus

import aiohttp
import msgspec
from aiohttp import web

from kvplane_services.gateway import headers
from kvplane_services.gateway.engine_client import EngineFailed
from kvplane_services.gateway.openai_errors import OpenAIError


class _ErrorAnswer(msgspec.Struct):
    error: dict[str, msgspec.Raw]


def passed_on(response: aiohttp.ClientResponse, body: bytes) -> web.Response:
    """An engine's error as it is; one that says as much if it has no body."""
    if not body:
        return OpenAIError(
            response.status,
            f"the engine refused the request with status {response.status}",
            code="engine_refused",
        ).response()
    return web.Response(
        status=response.status, body=body, headers=headers.to_client(response.headers)
    )


def server_error(response: aiohttp.ClientResponse, body: bytes) -> OpenAIError | web.Response:
    """An engine's 5xx: as it is if it has OpenAI's shape, else in that shape."""
    if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR and _has_openai_shape(body):
        return passed_on(response, body)
    return OpenAIError(
        502,
        f"the engine failed with status {response.status}; send the request again",
        code="engine_failed",
    )


def no_answer(failure: EngineFailed) -> OpenAIError:
    """An engine that did not answer at all."""
    if failure.timed_out:
        return OpenAIError(
            504, "the engine did not answer in time; send the request again", code="engine_timeout"
        )
    return OpenAIError(
        502,
        "the engine could not be reached or broke off; send the request again",
        code="engine_failed",
    )


def broken(how: str) -> OpenAIError:
    """An answer that is not complete; `how` continues "the engine's answer"."""
    return OpenAIError(
        502, f"the engine's answer {how}; send the request again", code="answer_incomplete"
    )


def _has_openai_shape(body: bytes) -> bool:
    try:
        msgspec.json.decode(body, type=_ErrorAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
