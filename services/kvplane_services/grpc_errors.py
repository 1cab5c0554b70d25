"""Domain errors on the wire: the one table, applied by one interceptor.

Clients match on the status code and on the `reason` of google.rpc.ErrorInfo, whose domain is
"kvplane"; the message is for people.
"""

import inspect
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, cast

import grpc.aio
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from kvplane_services import errors
from kvplane_services.durations import duration
from kvplane_services.grpc_handlers import Handler, Interceptor, behaviour_of, with_behaviour

DOMAIN = "kvplane"

_log = logging.getLogger(__name__)

# The first entry whose class the error is an instance of counts.
_CODES: tuple[tuple[type[errors.KvplaneError], int], ...] = (
    (errors.InvalidRequest, code_pb2.INVALID_ARGUMENT),
    (errors.NotFound, code_pb2.NOT_FOUND),
    (errors.AlreadyExists, code_pb2.ALREADY_EXISTS),
    (errors.FailedPrecondition, code_pb2.FAILED_PRECONDITION),
    (errors.TooLarge, code_pb2.INVALID_ARGUMENT),
    (errors.Conflict, code_pb2.ABORTED),
    (errors.Saturated, code_pb2.RESOURCE_EXHAUSTED),
    (errors.Unavailable, code_pb2.UNAVAILABLE),
    # Nothing that a caller can change: to it the plane is away until an operator acts.
    (errors.StoreRefused, code_pb2.UNAVAILABLE),
    (errors.WatchTooOld, code_pb2.OUT_OF_RANGE),
)


def status_of(error: errors.KvplaneError) -> status_pb2.Status:
    """The status of a domain error, with its details."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), int(code_pb2.INTERNAL))
    details: list[Message] = [
        error_details_pb2.ErrorInfo(
            reason=error.reason, domain=DOMAIN, metadata=dict(error.metadata)
        )
    ]
    if isinstance(error, errors.InvalidRequest) and error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=error.message
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(error, errors.Saturated | errors.Unavailable):
        details.append(error_details_pb2.RetryInfo(retry_delay=duration(error.retry_after)))
    return status_pb2.Status(code=code, message=error.message, details=map(_packed, details))


class ErrorInterceptor(Interceptor):
    """Ends calls whose handler raises with the status of the error.

    What is no domain error is a bug: it is logged once, with an id that the caller is told.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """See `grpc.aio.ServerInterceptor`."""
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            # No such method: gRPC itself answers UNIMPLEMENTED.
            return cast("Handler", None)
        behaviour = behaviour_of(handler)
        # Coroutines may write a stream for themselves, as gRPC's own services do.
        wrap = _streaming if inspect.isasyncgenfunction(behaviour) else _unary
        return with_behaviour(handler, wrap(behaviour, handler_call_details.method))


def _unary(behaviour: Any, method: str) -> Any:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            return await behaviour(request, context)
        except Exception as error:  # noqa: BLE001 - the outermost boundary
            await _abort(error, method, context)

    return call


def _streaming(behaviour: Any, method: str) -> Any:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        try:
            async for response in behaviour(request, context):
                yield response
        except Exception as error:  # noqa: BLE001 - the outermost boundary
            await _abort(error, method, context)

    return call


async def _abort(
    error: Exception, method: str, context: grpc.aio.ServicerContext[Any, Any]
) -> NoReturn:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, errors.KvplaneError):
        status = status_of(error)
    else:
        error_id = secrets.token_hex(8)
        _log.error("%s failed, error id %s", method, error_id, exc_info=error)
        status = status_of(errors.KvplaneError(f"internal error {error_id}", error_id=error_id))
    rich = rpc_status.to_status(status)
    await context.abort(rich.code, rich.details, rich.trailing_metadata)
    raise AssertionError("abort raises")


def _packed(detail: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed
