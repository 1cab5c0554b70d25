"""Settings: one frozen model per process, read in one place.

A value comes from, first found: the command line, the environment
(`KVPLANE_ROUTER__MIN_PULL_TOKENS=128`), the TOML file named by `--config` or
`KVPLANE_CONFIG` (`[router]` `min_pull_tokens = 128`), the default. A key that no process
knows is refused by its name, wherever it stands. One file may serve all processes: each
reads its own sections.
"""

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from kvplane_services.errors import InvalidRequest
from kvplane_services.settings_sections import (
    GatewaySection,
    GrpcSection,
    LeasesSection,
    LogSection,
    PeersSection,
    ProberSection,
    RegistrationSection,
    RouterSection,
    SessionsSection,
    StopSection,
)
from kvplane_services.settings_sim import SimSection
from kvplane_services.settings_store import StoreSection

_PREFIX = "KVPLANE_"
_DELIMITER = "__"
_FILE_VARIABLE = "KVPLANE_CONFIG"

_S = TypeVar("_S", bound="ProcessSettings")


class ProcessSettings(BaseSettings):
    """What every process can be told."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_nested_delimiter=_DELIMITER,
        nested_model_default_partial_update=True,
        extra="forbid",
        frozen=True,
    )

    log: LogSection = LogSection()


class LeasesSettings(ProcessSettings):
    """Settings of `kvplane leases`."""

    grpc: GrpcSection = GrpcSection()
    store: StoreSection = StoreSection()
    stop: StopSection = StopSection()
    registration: RegistrationSection = RegistrationSection()
    leases: LeasesSection = LeasesSection()
    prober: ProberSection = ProberSection()
    engines: tuple[str, ...] = Field(
        default=(),
        description="Engines with the stock connector, each as "
        "ROLE=URL[,keeps=SECONDS[,trust-history]].",
    )


class RegistrySettings(ProcessSettings):
    """Settings of `kvplane registry`."""

    grpc: GrpcSection = GrpcSection(address="127.0.0.1:7001")
    stop: StopSection = StopSection()
    peers: PeersSection = PeersSection()
    store: StoreSection = StoreSection()
    sessions: SessionsSection = SessionsSection()


class RouterSettings(ProcessSettings):
    """Settings of `kvplane router`."""

    grpc: GrpcSection = GrpcSection(address="127.0.0.1:7002")
    stop: StopSection = StopSection()
    peers: PeersSection = PeersSection()
    router: RouterSection = RouterSection()


class GatewaySettings(ProcessSettings):
    """Settings of `kvplane gateway`."""

    stop: StopSection = StopSection()
    peers: PeersSection = PeersSection()
    gateway: GatewaySection = GatewaySection()


class PlaneSettings(LeasesSettings):
    """Settings of `kvplane up`: everything in one process."""

    sessions: SessionsSection = SessionsSection()
    router: RouterSection = RouterSection()
    gateway: GatewaySection = GatewaySection()


class SimEngineSettings(ProcessSettings):
    """Settings of `kvplane sim-engine`."""

    sim: SimSection = SimSection()


PROCESSES: Mapping[str, type[ProcessSettings]] = {
    "up": PlaneSettings,
    "leases": LeasesSettings,
    "registry": RegistrySettings,
    "router": RouterSettings,
    "gateway": GatewaySettings,
    "sim-engine": SimEngineSettings,
}


def load(
    kind: type[_S],
    *,
    file: Path | None = None,
    flags: Mapping[str, Mapping[str, Any] | Any] | None = None,
) -> _S:
    """The settings of a process.

    Args:
        kind: Which process.
        file: The settings file; None for the one that `KVPLANE_CONFIG` names, if any.
        flags: Values from the command line, by section and key; those that are None count
            as not given.

    Raises:
        InvalidRequest: A key is unknown, a value is out of bounds, or the file is unreadable;
            names the key and where it stands.

    """
    _refuse_unknown_variables()
    if file is None and os.environ.get(_FILE_VARIABLE):
        file = Path(os.environ[_FILE_VARIABLE])
    in_file = _read(file) if file is not None else {}

    class Sourced(kind):  # type: ignore[misc,valid-type]
        """`kind`, reading this file."""

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            del dotenv_settings, file_secret_settings
            own = {key: value for key, value in in_file.items() if key in kind.model_fields}
            return init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=own)

    try:
        settings = Sourced(**_given(flags or {}))
    except ValidationError as error:
        raise _refusal(error, kind, file) from error
    except SettingsError as error:
        raise InvalidRequest(f"settings: {error}") from error
    return kind.model_construct(**{key: getattr(settings, key) for key in kind.model_fields})


def _given(flags: Mapping[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for key, value in flags.items():
        if isinstance(value, Mapping):
            section = {name: one for name, one in value.items() if one is not None}
            if section:
                given[key] = section
        elif value:
            given[key] = value
    return given


def _read(file: Path) -> dict[str, Any]:
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequest(
            f"the settings file {file} cannot be read: {error.strerror}"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{file}, the settings file, is not TOML: {error}") from error
    for key, value in found.items():
        _check_section(key, value, file)
    return found


def _check_section(key: str, value: Any, file: Path) -> None:
    """Refuses what no process knows, sections of other processes included."""
    owners = [kind for kind in PROCESSES.values() if key in kind.model_fields]
    if not owners:
        raise InvalidRequest(f"{key} in {file} is not a setting{_hint(key, _all_keys())}")
    annotation = owners[0].model_fields[key].annotation
    if isinstance(annotation, type) and hasattr(annotation, "model_validate"):
        try:
            annotation.model_validate(value)
        except ValidationError as error:
            raise _refusal(error, owners[0], file, within=(key,)) from error


def _refuse_unknown_variables() -> None:
    # Only names of our own form: Kubernetes sets KVPLANE_PORT and the like for a service of
    # that name.
    for variable in os.environ:
        name = variable.upper()
        if not name.startswith(_PREFIX) or _DELIMITER not in name:
            continue
        section = name.removeprefix(_PREFIX).split(_DELIMITER)[0].lower()
        if section not in _all_keys():
            raise InvalidRequest(
                f"the environment variable {variable} is not a setting{_hint(section, _all_keys())}"
            )


def _all_keys() -> set[str]:
    return {key for kind in PROCESSES.values() for key in kind.model_fields}


def _refusal(
    error: ValidationError,
    kind: type[ProcessSettings],
    file: Path | None,
    *,
    within: tuple[str, ...] = (),
) -> InvalidRequest:
    """One line for the first thing that is wrong."""
    first = error.errors(include_url=False)[0]
    path = (*within, *(str(part) for part in first["loc"]))
    name = ".".join(path)
    where = f" in {file}" if within and file is not None else ""
    if first["type"] == "extra_forbidden":
        known = _keys_at(kind, path[:-1])
        return InvalidRequest(f"{name}{where} is not a setting{_hint(path[-1], known)}", field=name)
    message = first["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    # Errors of our own validators quote the value themselves; a secret is never quoted.
    if first["type"] != "value_error" and not name.endswith(("secret", "password")):
        message += f", got {first['input']!r}"
    return InvalidRequest(f"setting {name}{where}: {message}", field=name)


def _keys_at(kind: type[ProcessSettings], path: tuple[str, ...]) -> Iterator[str]:
    fields = kind.model_fields
    for part in path:
        annotation = fields[part].annotation if part in fields else None
        fields = getattr(annotation, "model_fields", {})
    yield from fields


def _hint(key: str, known: Iterator[str] | set[str]) -> str:
    close = difflib.get_close_matches(key, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
