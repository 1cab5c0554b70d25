"""What an operator sets: the object under "kvplane" in vLLM's `kv_connector_extra_config`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kvplane.client.addresses import normalize_targets

Role = Literal["prefill", "decode", "both"]

_ROLES: Mapping[str, Role] = {
    "prefill": "prefill",
    "decode": "decode",
    "both": "both",
    "kv_producer": "prefill",
    "kv_consumer": "decode",
    "kv_both": "both",
}

# A rest delays what only a step can do, which users of vLLM expect at once.
_LONGEST_REST_MS = 1000


class SettingsError(ValueError):
    """The configuration cannot be used; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The connector's settings.

    Attributes:
        role: What the engine serves. Default: from vLLM's `kv_role`.
        plane: Address of the plane's gRPC, `host:port`; several, separated by commas, for a plane
            of several replicas. Empty: none; the engine then
            holds its retentions for `lease_ttl` and nobody hears of them.
        engine_id: Name of the engine in the plane. Required with `plane`. With several
            data-parallel ranks each appends `-dp{rank}`.
        endpoint: Base URL of this engine's OpenAI-compatible server as the gateway reaches it.
            Required with `plane`.
        lease_ttl: Seconds that a retention is held until the plane says otherwise.
        min_lease_ttl: Shortest TTL, seconds. Readers decline within vLLM's 5 s of an expiry.
        max_lease_ttl: Longest TTL that the plane can order, seconds.
        progress_thread: Whether NIXL runs its progress thread, without which an engine that
            has nothing to do does not serve reads.
        progress_delay_us: Microseconds that the progress thread sleeps between polls; 0 polls
            without a pause, on one whole core.
        validate_reads: Whether reads of other engines are validated by generation words, and this
            engine has such words for what it keeps. Else, and where words cannot be had, reads
            are fenced by expiries. To be the same on all engines: one that does not validate
            reads no retention of one that does.
        rest_ms: Longest pause, milliseconds, between steps of an engine that only waits for its
            retentions to end; it ends at once when a request arrives. 0 steps as vLLM does.
        labels: Free for operators, for example {"zone": "a"}.
        retention_budget: Part of this engine's KV blocks, 0 to 1, that the plane lets retentions
            take. Default: what the plane is set to.

    """

    role: Role
    plane: str = ""
    engine_id: str = ""
    endpoint: str = ""
    lease_ttl: float = 30.0
    min_lease_ttl: float = 6.0
    max_lease_ttl: float = 3600.0
    progress_thread: bool = True
    progress_delay_us: int = 1000
    rest_ms: int = 50
    validate_reads: bool = True
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    retention_budget: float | None = None

    def clamp_ttl(self, ttl: float) -> float:
        """The TTL within the bounds that is nearest to `ttl`, seconds."""
        return min(max(ttl, self.min_lease_ttl), self.max_lease_ttl)


def read_settings(extra_config: Mapping[str, Any], kv_role: str | None) -> Settings:
    """Reads the settings out of vLLM's configuration.

    Args:
        extra_config: `kv_connector_extra_config`.
        kv_role: vLLM's `kv_role`.

    Raises:
        SettingsError: A key is unknown, or a value is of the wrong kind or out of bounds.

    """
    given = extra_config.get("kvplane", {})
    if not isinstance(given, Mapping):
        raise SettingsError('"kvplane" in kv_connector_extra_config must be an object')
    if unknown := sorted(set(given) - set(_READERS)):
        raise SettingsError(
            f"unknown kvplane setting {', '.join(unknown)} in kv_connector_extra_config; "
            f"known: {', '.join(sorted(_READERS))}"
        )
    values: dict[str, Any] = {key: _READERS[key](key, value) for key, value in given.items()}
    wanted = values.get("role") or kv_role or ""
    role = _ROLES.get(wanted)
    if role is None:
        raise SettingsError(f"kvplane role must be prefill, decode or both, not {wanted!r}")
    values["role"] = role
    settings = Settings(**values)
    _check(settings)
    return settings


def _check(settings: Settings) -> None:
    if settings.plane and not (settings.engine_id and settings.endpoint):
        raise SettingsError(
            'kvplane settings with "plane" need "engine_id" (a name for this engine) and '
            '"endpoint" (its base URL as the gateway reaches it, for example http://10.0.0.7:8000)'
        )
    if settings.endpoint and not settings.endpoint.startswith(("http://", "https://")):
        raise SettingsError(f"kvplane endpoint must be an http URL, not {settings.endpoint!r}")
    if not 0 < settings.min_lease_ttl <= settings.lease_ttl <= settings.max_lease_ttl:
        raise SettingsError(
            "kvplane TTLs must satisfy 0 < min_lease_ttl <= lease_ttl <= max_lease_ttl, not "
            f"{settings.min_lease_ttl:g}, {settings.lease_ttl:g}, {settings.max_lease_ttl:g}"
        )
    budget = settings.retention_budget
    if budget is not None and not 0 <= budget <= 1:
        raise SettingsError(f"kvplane retention_budget must be within 0 to 1, not {budget:g}")
    if not 0 <= settings.rest_ms <= _LONGEST_REST_MS:
        raise SettingsError(
            f"kvplane rest_ms must be from 0 to {_LONGEST_REST_MS}, not {settings.rest_ms}: "
            "retentions are freed that much later than they expire"
        )
    if settings.progress_delay_us < 0:
        raise SettingsError("kvplane progress_delay_us must not be negative")


def _text(key: str, value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise SettingsError(f"kvplane {key} must be a string, not {value!r}")
    return value


def _addresses(key: str, value: Any) -> str:
    text = _text(key, value)
    try:
        return normalize_targets(text) if text else ""
    except ValueError as error:
        raise SettingsError(f"kvplane {key}: {error}") from error


def _url(key: str, value: Any) -> str:
    return _text(key, value).rstrip("/")


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SettingsError(f"kvplane {key} must be a number, not {value!r}")
    return float(value)


def _optional_number(key: str, value: Any) -> float | None:
    return None if value is None else _number(key, value)


def _whole_number(key: str, value: Any) -> int:
    return int(_number(key, value))


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise SettingsError(f"kvplane {key} must be true or false, not {value!r}")
    return value


def _labels(key: str, value: Any) -> Mapping[str, str]:
    if not isinstance(value, Mapping) or not all(
        isinstance(name, str) and isinstance(text, str) for name, text in value.items()
    ):
        raise SettingsError(f"kvplane {key} must be an object of strings")
    return dict(value)


_READERS: Mapping[str, Callable[[str, Any], Any]] = {
    "role": _text,
    "plane": _addresses,
    "engine_id": _text,
    "endpoint": _url,
    "lease_ttl": _number,
    "min_lease_ttl": _number,
    "max_lease_ttl": _number,
    "progress_thread": _flag,
    "progress_delay_us": _whole_number,
    "rest_ms": _whole_number,
    "validate_reads": _flag,
    "labels": _labels,
    "retention_budget": _optional_number,
}
