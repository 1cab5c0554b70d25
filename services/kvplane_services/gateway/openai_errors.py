"""Errors in OpenAI's shape, and the one table from domain errors to HTTP."""

import math
from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from aiohttp import web

from kvplane_services.errors import (
    AlreadyExists,
    Conflict,
    FailedPrecondition,
    InvalidRequest,
    KvplaneError,
    NotFound,
    Saturated,
    StoreRefused,
    TooLarge,
    Unavailable,
)

_STATUS: tuple[tuple[type[KvplaneError], int], ...] = (
    (InvalidRequest, 400),
    (NotFound, 404),
    (AlreadyExists, 409),
    (FailedPrecondition, 409),
    (TooLarge, 413),
    (Conflict, 409),
    (Saturated, 429),
    (Unavailable, 503),
    (StoreRefused, 503),
)


class OpenAIError(Exception):
    """Ends a request with an answer in OpenAI's shape.

    Args:
        status: HTTP status.
        message: What is wrong and what to do, for the caller.
        code: The reason as a stable name for machines.
        param: The field of the request that is at fault, if one is.
        retry_after: Seconds after which a retry makes sense, if it does.
        headers: More headers of the answer.

    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after = retry_after
        self.headers = headers or {}

    def body(self) -> bytes:
        """The error object as JSON."""
        return msgspec.json.encode(
            {
                "error": {
                    "message": self.message,
                    "type": error_type(self.status),
                    "param": self.param,
                    "code": self.code,
                }
            }
        )

    def response(self) -> web.Response:
        """The answer to the client."""
        headers = dict(self.headers)
        if self.retry_after is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after)))
        return web.Response(
            status=self.status,
            body=self.body(),
            headers=headers,
            content_type="application/json",
        )


def error_type(status: int) -> str:
    """OpenAI's `type` for a status."""
    match status:
        case 401:
            return "authentication_error"
        case 403:
            return "permission_error"
        case 429:
            return "rate_limit_error"
        case _ if status < HTTPStatus.INTERNAL_SERVER_ERROR:
            return "invalid_request_error"
        case _:
            return "server_error"


def from_domain(error: KvplaneError) -> OpenAIError:
    """A domain error as an answer to a client."""
    status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
    retry_after = error.retry_after if isinstance(error, Saturated | Unavailable) else None
    param: str | None = None
    code = error.reason.lower()
    if isinstance(error, NotFound):
        # The one thing that a turn names and that can be missing is its model.
        code, param = "model_not_found", "model"
    elif isinstance(error, InvalidRequest):
        param = error.field or None
    return OpenAIError(status, error.message, code=code, param=param, retry_after=retry_after)
