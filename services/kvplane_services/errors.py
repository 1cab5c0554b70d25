"""What can go wrong in the domain.

Each error is raised by the domain, knows nothing of gRPC or HTTP, and carries a
message that says what to do. `reason` is the stable, machine-readable name that
clients match on; grpc_errors.py and the gateway hold the one table each that
translates them.

    KvplaneError
    ├── InvalidRequest          malformed or out of bounds
    ├── NotFound                no such engine, lease, session or model
    ├── AlreadyExists           the id is taken
    ├── FailedPrecondition      the state does not allow it
    │   ├── LeaseFenced         another grant took the lease's place
    │   ├── EpochStale          another registration took the engine's place
    │   ├── EngineIncompatible  the engine cannot work with the others
    │   └── StrategyImpossible  the forced strategy cannot be carried out
    ├── Conflict                etag or revision mismatch: read again and retry
    │   ├── GuardFailed         another replica has taken over what is to be written
    │   └── TooLarge            the store does not take a value, or values at once, of that size
    ├── Saturated               a quota or every engine is full: retry later
    ├── Unavailable             no engine or no store at the moment: retry later
    ├── StoreRefused            the store answers but will not serve us: an operator must act
    └── WatchTooOld             the revision to resume at is gone: list again
"""

from typing import ClassVar


class KvplaneError(Exception):
    """Base of all domain errors.

    Args:
        message: One sentence for the caller that says what is wrong and what to do.
        metadata: Facts for machines, such as the name of the engine concerned.

    """

    reason: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str, **metadata: str) -> None:
        super().__init__(message)
        self.message = message
        self.metadata = metadata


def logged(error: KvplaneError) -> str:
    """What to say of an error in this process's log: what is behind it, if callers hear less."""
    while isinstance(error.__cause__, KvplaneError):
        error = error.__cause__
    return error.message


class InvalidRequest(KvplaneError):
    """A field is missing, malformed or out of bounds; `field` names it by its path."""

    reason = "INVALID_REQUEST"

    def __init__(self, message: str, *, field: str = "", **metadata: str) -> None:
        super().__init__(message, **metadata)
        self.field = field


class NotFound(KvplaneError):
    """There is no engine, lease, session or model of that name."""

    reason = "NOT_FOUND"


class AlreadyExists(KvplaneError):
    """The id is taken."""

    reason = "ALREADY_EXISTS"


class FailedPrecondition(KvplaneError):
    """The state does not allow the call; repeating it unchanged will not help."""

    reason = "FAILED_PRECONDITION"


class LeaseFenced(FailedPrecondition):
    """The fencing token is not that of the live grant."""

    reason = "LEASE_FENCED"


class EpochStale(FailedPrecondition):
    """The epoch is not that of the engine's current registration."""

    reason = "EPOCH_STALE"


class EngineIncompatible(FailedPrecondition):
    """The engine cannot work with this plane, or with the engines it would be paired with."""

    reason = "ENGINE_INCOMPATIBLE"


class StrategyImpossible(FailedPrecondition):
    """The forced strategy cannot be carried out for this turn."""

    reason = "STRATEGY_IMPOSSIBLE"


class Conflict(KvplaneError):
    """Somebody wrote in between; read again and retry."""

    reason = "CONFLICT"


class GuardFailed(Conflict):
    """Another replica has taken over what this one was about to write."""


class TooLarge(Conflict):
    """The store does not take a value of that size, or values of that size at once."""

    reason = "TOO_LARGE"


class Saturated(KvplaneError):
    """A quota or all engines are full; retry after `retry_after` seconds."""

    reason = "SATURATED"

    def __init__(self, message: str, *, retry_after: float, **metadata: str) -> None:
        super().__init__(message, **metadata)
        self.retry_after = retry_after


class Unavailable(KvplaneError):
    """Nothing can serve the call at the moment; retry after `retry_after` seconds."""

    reason = "UNAVAILABLE"

    def __init__(self, message: str, *, retry_after: float, **metadata: str) -> None:
        super().__init__(message, **metadata)
        self.retry_after = retry_after


class StoreRefused(KvplaneError):
    """The store answers but will not serve us: password, certificate, version. Retrying is vain."""

    reason = "STORE_REFUSED"


class WatchTooOld(KvplaneError):
    """Changes after the asked revision are no longer held; list again, then watch."""

    reason = "WATCH_COMPACTED"
