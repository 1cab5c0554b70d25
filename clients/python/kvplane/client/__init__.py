"""The client of kvplane: asyncio, over the generated stubs, without gRPC in sight.

Names are loaded at their first use, so that importing this package costs nothing and
starts nothing: engines import it in processes that fork.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvplane.client.calls import Removed, Reset, Synced, Upserted, WatchEvent
    from kvplane.client.channel import Tls
    from kvplane.client.clock import Clock, SystemClock
    from kvplane.client.engine_link import EngineLink
    from kvplane.client.errors import (
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
    from kvplane.client.kept_lease import KeptLease, LostReason
    from kvplane.client.lease_keeper import LeaseKeeper
    from kvplane.client.names import (
        SessionKey,
        engine_name,
        lease_name,
        parse_session_name,
        session_name,
    )
    from kvplane.client.plane import Plane
    from kvplane.client.registration import Registration
    from kvplane.client.retention import (
        Directive,
        EndReason,
        EngineLoad,
        Release,
        Renew,
        Report,
        Retention,
        RetentionSource,
    )
    from kvplane.client.retention_log import RetentionLog
    from kvplane.client.sync import SyncPlane
    from kvplane.client.timing import KeeperTiming, LinkTiming

_HOMES = {
    "calls": ("Removed", "Reset", "Synced", "Upserted", "WatchEvent"),
    "channel": ("Tls",),
    "clock": ("Clock", "SystemClock"),
    "engine_link": ("EngineLink",),
    "errors": (
        "AlreadyExistsError",
        "AnswerTimeoutError",
        "ConflictError",
        "FailedPreconditionError",
        "FencedError",
        "InvalidRequestError",
        "KvplaneClientError",
        "NotFoundError",
        "SaturatedError",
        "UnavailableError",
        "WatchCompactedError",
    ),
    "kept_lease": ("KeptLease", "LostReason"),
    "lease_keeper": ("LeaseKeeper",),
    "names": ("SessionKey", "engine_name", "lease_name", "parse_session_name", "session_name"),
    "plane": ("Plane",),
    "registration": ("Registration",),
    "retention": (
        "Directive",
        "EndReason",
        "EngineLoad",
        "Release",
        "Renew",
        "Report",
        "Retention",
        "RetentionSource",
    ),
    "retention_log": ("RetentionLog",),
    "sync": ("SyncPlane",),
    "timing": ("KeeperTiming", "LinkTiming"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AlreadyExistsError",
    "AnswerTimeoutError",
    "Clock",
    "ConflictError",
    "Directive",
    "EndReason",
    "EngineLink",
    "EngineLoad",
    "FailedPreconditionError",
    "FencedError",
    "InvalidRequestError",
    "KeeperTiming",
    "KeptLease",
    "KvplaneClientError",
    "LeaseKeeper",
    "LinkTiming",
    "LostReason",
    "NotFoundError",
    "Plane",
    "Registration",
    "Release",
    "Removed",
    "Renew",
    "Report",
    "Reset",
    "Retention",
    "RetentionLog",
    "RetentionSource",
    "SaturatedError",
    "SessionKey",
    "SyncPlane",
    "Synced",
    "SystemClock",
    "Tls",
    "UnavailableError",
    "Upserted",
    "WatchCompactedError",
    "WatchEvent",
    "engine_name",
    "lease_name",
    "parse_session_name",
    "session_name",
]


def __getattr__(name: str) -> Any:
    """Loads a public name from its module."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
