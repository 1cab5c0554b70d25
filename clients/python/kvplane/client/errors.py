"""What calls to the plane raise. Hides gRPC; `code` and `reason` are what to match on.

KvplaneClientError
├── InvalidRequestError      malformed or out of bounds: do not repeat
├── NotFoundError            no such engine, lease, session or model
├── AlreadyExistsError       the id is taken
├── FailedPreconditionError  the state does not allow it; `reason` says which
│   └── FencedError          another grant or registration took this one's place
├── ConflictError            somebody wrote in between: read again and retry
├── SaturatedError           a quota or every engine is full: retry later
├── UnavailableError         nobody there, or nothing can serve the call now
├── AnswerTimeoutError       no answer in time; whether the call had effect is unknown
└── WatchCompactedError      the revision to resume at is gone: list again
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import grpc.aio

_DETAILS_KEY = "grpc-status-details-bin"
# After these another replica may do better. All others are answers to the call itself.
_LEAVING = frozenset(
    {"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "UNKNOWN", "INTERNAL", "DATA_LOSS"}
)
_FENCED_REASONS = frozenset({"LEASE_FENCED", "EPOCH_STALE"})


class KvplaneClientError(Exception):
    """Base of everything that the client raises for an answer of the plane, or for none.

    Attributes:
        code: Name of the gRPC status, for example "NOT_FOUND".
        reason: The plane's machine-readable reason, for example "LEASE_FENCED"; empty if the
            error did not come from the plane itself.
        message: One sentence for people.
        retry_after: Seconds after which a retry makes sense; None if the plane named none.
        metadata: Facts for machines.

    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "UNKNOWN",
        reason: str = "",
        retry_after: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason
        self.retry_after = retry_after
        self.metadata = dict(metadata or {})

    def __repr__(self) -> str:
        """For logs."""
        return (
            f"{type(self).__name__}({self.message!r}, code={self.code!r}, reason={self.reason!r})"
        )


class InvalidRequestError(KvplaneClientError):
    """Malformed or out of bounds."""


class NotFoundError(KvplaneClientError):
    """No such engine, lease, session or model."""


class AlreadyExistsError(KvplaneClientError):
    """The id is taken."""


class FailedPreconditionError(KvplaneClientError):
    """The state does not allow the call."""


class FencedError(FailedPreconditionError):
    """Another grant of the lease, or registration of the engine, took this one's place."""


class ConflictError(KvplaneClientError):
    """Somebody wrote in between."""


class SaturatedError(KvplaneClientError):
    """A quota or every engine is full."""


class UnavailableError(KvplaneClientError):
    """Nobody listens there, or nothing can serve the call at the moment."""


class AnswerTimeoutError(KvplaneClientError):
    """No answer in time. Whether the call had its effect is unknown."""


class WatchCompactedError(KvplaneClientError):
    """Changes after the asked revision are no longer held."""


_BY_CODE: dict[str, type[KvplaneClientError]] = {
    "INVALID_ARGUMENT": InvalidRequestError,
    "NOT_FOUND": NotFoundError,
    "ALREADY_EXISTS": AlreadyExistsError,
    "FAILED_PRECONDITION": FailedPreconditionError,
    "ABORTED": ConflictError,
    "RESOURCE_EXHAUSTED": SaturatedError,
    "UNAVAILABLE": UnavailableError,
    # Who cancels a call hears nothing of it; this is what a plane does as it stops.
    "CANCELLED": UnavailableError,
    "DEADLINE_EXCEEDED": AnswerTimeoutError,
    "OUT_OF_RANGE": WatchCompactedError,
}


def moves_on(error: KvplaneClientError) -> bool:
    """Whether another replica of the plane may do better than the one that failed so."""
    return error.code in _LEAVING


def error_of(code: str, message: str, **details: Any) -> KvplaneClientError:
    """The error for a gRPC status by its name; `details` are those of KvplaneClientError."""
    kind = _BY_CODE.get(code, KvplaneClientError)
    if kind is FailedPreconditionError and details.get("reason") in _FENCED_REASONS:
        kind = FencedError
    return kind(message, code=code, **details)


def from_rpc(error: grpc.aio.AioRpcError, *, target: str = "") -> KvplaneClientError:
    """The error for a failed call, with what its rich details say.

    Args:
        error: What gRPC raised.
        target: Address that was called; goes into the metadata under "target".

    """
    reason, metadata = "", dict[str, str]()
    retry_after: float | None = None
    # The stubs describe the entries wrongly: they are pairs.
    trailing: Iterable[tuple[str, str | bytes]] = cast("Any", error.trailing_metadata()) or ()
    for key, value in trailing:
        if key == _DETAILS_KEY and isinstance(value, bytes):
            reason, retry_after, metadata = _rich_details(value)
    if target:
        metadata = {**metadata, "target": target}
    return error_of(
        error.code().name,
        error.details() or error.code().name.replace("_", " ").lower(),
        reason=reason,
        retry_after=retry_after,
        metadata=metadata,
    )


def _rich_details(encoded: bytes) -> tuple[str, float | None, dict[str, str]]:
    # Only plane errors need these, and engine hosts import this module without them.
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - see above
    from google.rpc import error_details_pb2, status_pb2  # noqa: PLC0415 - see above

    reason, metadata = "", dict[str, str]()
    retry_after: float | None = None
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    try:
        for detail in status_pb2.Status.FromString(encoded).details:
            if detail.Unpack(info):
                reason, metadata = info.reason, dict(info.metadata)
            elif detail.Unpack(retry):
                retry_after = retry.retry_delay.ToNanoseconds() / 1e9
    except DecodeError:
        pass  # A proxy may cut or rewrite details; the status itself still counts.
    return reason, retry_after, metadata
