"""The client of kvplane: asyncio, over the generated stubs, without gRPC in sight.

Names are loaded at their first use, so that importing this package costs nothing and
starts nothing: engines import it in processes that fork.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvplane.client.channel import Tls
    from kvplane.client.clock import Clock, SystemClock
    from kvplane.client.engine_link import EngineLink, LinkTiming, Registration
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
    from kvplane.client.names import (
        SessionKey,
        engine_name,
        lease_name,
        parse_session_name,
        session_name,
    )
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

_HOMES = {
    "channel": ("Tls",),
    "clock": ("Clock", "SystemClock"),
    "engine_link": ("EngineLink", "LinkTiming", "Registration"),
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
    "names": ("SessionKey", "engine_name", "lease_name", "parse_session_name", "session_name"),
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
    "KvplaneClientError",
    "LinkTiming",
    "NotFoundError",
    "Registration",
    "Release",
    "Renew",
    "Report",
    "Retention",
    "RetentionLog",
    "RetentionSource",
    "SaturatedError",
    "SessionKey",
    "SystemClock",
    "Tls",
    "UnavailableError",
    "WatchCompactedError",
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
