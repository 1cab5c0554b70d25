"""Services that say what only old or odd etcds say."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from kvplane_services.etcd_api.v3 import kv_pb2, rpc_pb2

Read = Callable[[rpc_pb2.RangeRequest, Any], Awaitable[rpc_pb2.RangeResponse]]


def compacted_underneath(times: int) -> Read:
    """Reads of two pages of keys, between which it is compacted so many times."""
    left = times

    async def read(request: rpc_pb2.RangeRequest, context: Any) -> rpc_pb2.RangeResponse:
        nonlocal left
        header = rpc_pb2.ResponseHeader(cluster_id=7, revision=40 + left)
        if not request.revision:
            return rpc_pb2.RangeResponse(header=header, kvs=[kv_pb2.KeyValue(key=b"/a")], more=True)
        if left:
            left -= 1
            await context.abort(
                grpc.StatusCode.OUT_OF_RANGE,
                "etcdserver: mvcc: required revision has been compacted",
            )
        assert request.key == b"/a\0"
        return rpc_pb2.RangeResponse(header=header, kvs=[kv_pb2.KeyValue(key=b"/b")])

    return read


@asynccontextmanager
async def serving(*, version: str = "3.4.0", read: Read | None = None) -> AsyncIterator[str]:
    """Says a version, and reads; gives its address."""

    async def status(_: rpc_pb2.StatusRequest, context: Any) -> rpc_pb2.StatusResponse:
        return rpc_pb2.StatusResponse(version=version)

    methods: dict[str, dict[str, Any]] = {
        "Maintenance": {
            "Status": grpc.unary_unary_rpc_method_handler(
                status,
                request_deserializer=rpc_pb2.StatusRequest.FromString,
                response_serializer=rpc_pb2.StatusResponse.SerializeToString,
            )
        }
    }
    if read is not None:
        methods["KV"] = {
            "Range": grpc.unary_unary_rpc_method_handler(
                read,
                request_deserializer=rpc_pb2.RangeRequest.FromString,
                response_serializer=rpc_pb2.RangeResponse.SerializeToString,
            )
        }
    server = grpc.aio.server()
    for service, handlers in methods.items():
        name = f"etcdserverpb.{service}"
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
