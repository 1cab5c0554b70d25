"""Failures of calls to another process of the plane, as domain errors again."""

from collections.abc import Callable

from kvplane.client.errors import (
    AlreadyExistsError,
    AnswerTimeoutError,
    ConflictError,
    FailedPreconditionError,
    InvalidRequestError,
    KvplaneClientError,
    NotFoundError,
    SaturatedError,
    UnavailableError,
    WatchCompactedError,
)
from kvplane_services.errors import (
    AlreadyExists,
    Conflict,
    EngineIncompatible,
    EpochStale,
    FailedPrecondition,
    InvalidRequest,
    KvplaneError,
    LeaseFenced,
    NotFound,
    Saturated,
    StrategyImpossible,
    Unavailable,
    WatchTooOld,
)

# After how long to retry where the other process did not say.
_RETRY_AFTER = 1.0

_PRECONDITIONS: dict[str, type[FailedPrecondition]] = {
    kind.reason: kind for kind in (LeaseFenced, EpochStale, EngineIncompatible, StrategyImpossible)
}


def domain_error(error: KvplaneClientError) -> KvplaneError:
    """The domain error that the other process raised, or what its absence means here.

    An answer that did not come in time is `Unavailable`: whether the call had its effect is
    unknown. What the plane calls a bug, or this version does not know, is a plain
    `KvplaneError`.
    """
    for kind, make in _BY_KIND:
        if isinstance(error, kind):
            return make(error)
    return KvplaneError(error.message, **error.metadata)


def _precondition(error: KvplaneClientError) -> KvplaneError:
    kind = _PRECONDITIONS.get(error.reason, FailedPrecondition)
    return kind(error.message, **error.metadata)


def _unavailable(error: KvplaneClientError) -> KvplaneError:
    return Unavailable(
        error.message, retry_after=error.retry_after or _RETRY_AFTER, **error.metadata
    )


def _saturated(error: KvplaneClientError) -> KvplaneError:
    return Saturated(error.message, retry_after=error.retry_after or _RETRY_AFTER, **error.metadata)


_Make = Callable[[KvplaneClientError], KvplaneError]
_BY_KIND: tuple[tuple[type[KvplaneClientError], _Make], ...] = (
    (InvalidRequestError, lambda error: InvalidRequest(error.message, **error.metadata)),
    (NotFoundError, lambda error: NotFound(error.message, **error.metadata)),
    (AlreadyExistsError, lambda error: AlreadyExists(error.message, **error.metadata)),
    (FailedPreconditionError, _precondition),
    (ConflictError, lambda error: Conflict(error.message, **error.metadata)),
    (SaturatedError, _saturated),
    (UnavailableError, _unavailable),
    (AnswerTimeoutError, _unavailable),
    (WatchCompactedError, lambda error: WatchTooOld(error.message, **error.metadata)),
)
