"""What a failed call tells besides its code."""

from dataclasses import dataclass, field
from typing import Any

import grpc.aio
from google.rpc import error_details_pb2, status_pb2


@dataclass(frozen=True)
class RichStatus:
    """A status with its details unpacked."""

    code: grpc.StatusCode
    message: str
    reason: str = ""
    domain: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    fields: tuple[str, ...] = ()
    retry_after: float | None = None


def rich_status(error: grpc.aio.AioRpcError) -> RichStatus:
    """The rich status of an error."""
    metadata: Any = error.trailing_metadata() or ()
    raw = dict(metadata).get("grpc-status-details-bin", b"")
    status = status_pb2.Status.FromString(raw)
    values: dict[str, Any] = {}
    for packed in status.details:
        info = error_details_pb2.ErrorInfo()
        bad = error_details_pb2.BadRequest()
        retry = error_details_pb2.RetryInfo()
        if packed.Unpack(info):
            values |= {
                "reason": info.reason,
                "domain": info.domain,
                "metadata": dict(info.metadata),
            }
        elif packed.Unpack(bad):
            values["fields"] = tuple(violation.field for violation in bad.field_violations)
        elif packed.Unpack(retry):
            values["retry_after"] = retry.retry_delay.ToTimedelta().total_seconds()
    return RichStatus(code=error.code(), message=error.details() or "", **values)
