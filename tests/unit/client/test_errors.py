"""From gRPC status to the client's exceptions."""

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2
from grpc.aio import AioRpcError, Metadata

from kvplane.client import (
    AlreadyExistsError,
    AnswerTimeoutError,
    ConflictError,
    FailedPreconditionError,
    FencedError,
    InvalidRequestError,
    KvplaneClientError,
    NotFoundError,
    SaturatedError,
    UnavailableError,
    WatchCompactedError,
)
from kvplane.client.errors import error_of, from_rpc


def rpc_error(code: grpc.StatusCode, details: str, *trailing: tuple[str, bytes]) -> AioRpcError:
    return AioRpcError(code, Metadata(), Metadata(*trailing), details, "")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("INVALID_ARGUMENT", InvalidRequestError),
        ("NOT_FOUND", NotFoundError),
        ("ALREADY_EXISTS", AlreadyExistsError),
        ("FAILED_PRECONDITION", FailedPreconditionError),
        ("ABORTED", ConflictError),
        ("RESOURCE_EXHAUSTED", SaturatedError),
        ("UNAVAILABLE", UnavailableError),
        ("DEADLINE_EXCEEDED", AnswerTimeoutError),
        ("OUT_OF_RANGE", WatchCompactedError),
        ("INTERNAL", KvplaneClientError),
    ],
)
def test_each_status_has_its_exception(code: str, kind: type[KvplaneClientError]) -> None:
    """The class of an error follows from its gRPC status alone."""
    error = from_rpc(rpc_error(grpc.StatusCode[code], "what happened"))
    assert type(error) is kind
    assert (error.code, error.message, str(error)) == (code, "what happened", "what happened")


@pytest.mark.parametrize("reason", ["LEASE_FENCED", "EPOCH_STALE"])
def test_fenced_is_told_apart_by_reason(reason: str) -> None:
    """A failed precondition with a fencing reason is a FencedError."""
    assert type(error_of("FAILED_PRECONDITION", "", reason=reason)) is FencedError


def test_rich_details_are_read() -> None:
    """Reason, metadata and the retry delay come from the status details; the target is added."""
    status = status_pb2.Status(code=8, message="full")
    for detail in (
        error_details_pb2.ErrorInfo(reason="SATURATED", domain="kvplane", metadata={"model": "m"}),
        error_details_pb2.RetryInfo(retry_delay=Duration(seconds=1, nanos=500_000_000)),
    ):
        packed = AnyMessage()
        packed.Pack(detail)
        status.details.append(packed)
    trailing = ("grpc-status-details-bin", status.SerializeToString())
    error = from_rpc(
        rpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", trailing), target="plane:1"
    )
    assert error.reason == "SATURATED"
    assert error.retry_after == 1.5
    assert error.metadata == {"model": "m", "target": "plane:1"}


def test_broken_details_do_not_hide_the_status() -> None:
    """Details that cannot be read leave code and message."""
    trailing = ("grpc-status-details-bin", b"\xff\xff\xff")
    error = from_rpc(rpc_error(grpc.StatusCode.NOT_FOUND, "no such lease", trailing))
    assert type(error) is NotFoundError
    assert (error.message, error.reason) == ("no such lease", "")


def test_an_error_without_words_has_some() -> None:
    """A status without details is still a sentence."""
    assert str(from_rpc(rpc_error(grpc.StatusCode.NOT_FOUND, ""))) == "not found"
