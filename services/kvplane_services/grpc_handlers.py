"""What interceptors need: a method's behaviour, and its handler with another one."""

from typing import TYPE_CHECKING, Any, TypeAlias

import grpc.aio

if TYPE_CHECKING:
    Handler: TypeAlias = grpc.RpcMethodHandler[Any, Any]
    Interceptor: TypeAlias = grpc.aio.ServerInterceptor[Any, Any]
else:
    # The classes take parameters only in the type stubs.
    Interceptor = grpc.aio.ServerInterceptor
    Handler = grpc.RpcMethodHandler

# By whether requests stream, and whether responses do.
_MAKERS: dict[tuple[bool, bool], Any] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


def behaviour_of(handler: Any) -> Any:
    """The function that serves the method; an async generator, or a coroutine."""
    return (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )


def with_behaviour(handler: Any, behaviour: Any) -> Handler:
    """The handler of the same method, served by another function."""
    made: Handler = _MAKERS[handler.request_streaming, handler.response_streaming](
        behaviour,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )
    return made
