"""What a registration must say, and the durations it is granted. Pure."""

import datetime as dt
import re
from dataclasses import dataclass, replace

from kvplane_services.engine.addresses import (
    check_endpoint,
    check_host,
    check_port,
    check_side_channel,
)
from kvplane_services.engine.model import ConnectorKind, Engine, EngineLoad, EngineState
from kvplane_services.errors import InvalidRequest

_ENGINE_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_MAX_LABELS = 64
_MAX_LABEL_BYTES = 256
_MAX_MODELS = 256


@dataclass(frozen=True, slots=True)
class DirectoryConfig:
    """Durations and bounds of registrations, in seconds.

    A registration lives through two lost heartbeats: heartbeat_interval < min_ttl / 2.

    Raises:
        ValueError: The durations do not fit together.

    """

    # How long a registration lasts without a heartbeat, unless the engine asks for another.
    ttl: float = 15.0
    min_ttl: float = 3.0
    max_ttl: float = 300.0
    # How often engines are asked to send heartbeats when nothing happens.
    heartbeat_interval: float = 1.0
    # How long a lost engine is listed as such before it is forgotten.
    remember_lost: float = 600.0
    # How often changed loads are written, all in one go. 0 for every change at once.
    load_interval: float = 1.0
    # Registrations held at once, lost ones included.
    max_engines: int = 4096

    def __post_init__(self) -> None:
        if not 0 < self.min_ttl <= self.ttl <= self.max_ttl:
            raise ValueError("engine ttl must lie within 0 < min_ttl <= ttl <= max_ttl")
        if not 0 < self.heartbeat_interval < self.min_ttl / 2:
            raise ValueError("engine heartbeat_interval must be positive and below min_ttl / 2")
        if self.remember_lost <= 0 or self.load_interval < 0 or self.max_engines < 1:
            raise ValueError(
                "remember_lost must be positive, load_interval not negative and max_engines at "
                "least 1"
            )

    def clamp(self, ttl: float) -> float:
        """The TTL granted for a wish; zero means none. Raises InvalidRequest if it is negative."""
        if ttl < 0:
            raise InvalidRequest(
                f"ttl is {ttl:g} s: ask for a positive one, or for none", field="ttl"
            )
        return min(max(ttl, self.min_ttl), self.max_ttl) if ttl else self.ttl


def check_registration(engine: Engine) -> Engine:
    """The engine with its endpoint in canonical form.

    Raises:
        InvalidRequest: Something is missing or malformed; names the field.

    """
    if not _ENGINE_ID.fullmatch(engine.engine_id):
        raise InvalidRequest(
            "engine_id must be 1 to 128 characters of A-Z, a-z, 0-9, '.', '_' and '-'",
            field="engine_id",
        )
    endpoint = check_endpoint(engine.endpoint)
    _check_models(engine)
    _check_ranks(engine)
    _check_labels(engine)
    _check_budget(engine)
    if engine.nixl is not None:
        check_host(engine.nixl.host)
        check_port(engine.nixl.port)
        check_side_channel(engine.nixl.host, endpoint)
        if not engine.nixl.engine_id:
            raise InvalidRequest("engine.nixl.engine_id is required", field="engine.nixl.engine_id")
    elif engine.build.connector is ConnectorKind.KVPLANE:
        raise InvalidRequest("engine.nixl is required for kvplane engines", field="engine.nixl")
    _check_layout(engine)
    _check_fixed_retention(engine)
    return replace(engine, endpoint=endpoint)


def first_state(engine: Engine, held: Engine | None) -> EngineState:
    """The state of an engine that registers, given what was registered before.

    A process that registers again drains on; one that was restarted does not.
    """
    same = held is not None and engine.nixl is not None and engine.nixl == held.nixl
    drains = held is not None and held.drain_requested
    return EngineState.DRAINING if same and drains else EngineState.ACTIVE


def as_registered(engine: Engine, held: Engine | None, *, epoch: int, at: dt.datetime) -> Engine:
    """The engine as it is once it registered at a time, given what was registered before."""
    state = first_state(engine, held)
    return replace(
        engine,
        epoch=epoch,
        state=state,
        load=EngineLoad(),
        create_time=at,
        expire_time=None,
        drain_requested=state is EngineState.DRAINING,
    )


def larger_epoch(drawn: int, *known: Engine | None) -> int:
    """The epoch of a registration: the one drawn, unless one that is known is as large.

    The sequence may have begun anew in a store that lost its data, by another replica's clock.
    """
    return max([drawn, *(engine.epoch + 1 for engine in known if engine is not None)])


def _check_fixed_retention(engine: Engine) -> None:
    if engine.fixed_retention is None:
        return
    if engine.build.connector is not ConnectorKind.STOCK:
        raise InvalidRequest(
            "engine.fixed_retention is for engines with the stock connector: others report what "
            "they keep",
            field="engine.fixed_retention",
        )
    if engine.fixed_retention.ttl <= 0:
        raise InvalidRequest(
            "engine.fixed_retention.ttl must be positive", field="engine.fixed_retention.ttl"
        )


def _check_models(engine: Engine) -> None:
    if not engine.models or not all(engine.models) or len(engine.models) > _MAX_MODELS:
        raise InvalidRequest(
            f"engine.models needs 1 to {_MAX_MODELS} served model names", field="engine.models"
        )


def _check_ranks(engine: Engine) -> None:
    if not 0 <= engine.data_parallel_rank < max(1, engine.data_parallel_size):
        raise InvalidRequest(
            f"engine.data_parallel_rank is {engine.data_parallel_rank}, of "
            f"{engine.data_parallel_size}: expected 0 to size - 1",
            field="engine.data_parallel_rank",
        )


def _check_labels(engine: Engine) -> None:
    if len(engine.labels) > _MAX_LABELS:
        raise InvalidRequest(f"engine.labels has more than {_MAX_LABELS}", field="engine.labels")
    for label, value in engine.labels.items():
        if not label or max(len(label.encode()), len(value.encode())) > _MAX_LABEL_BYTES:
            raise InvalidRequest(
                f"engine.labels: names and values may have up to {_MAX_LABEL_BYTES} bytes",
                field="engine.labels",
            )


def _check_budget(engine: Engine) -> None:
    if engine.retention_budget is not None and not 0 <= engine.retention_budget <= 1:
        raise InvalidRequest(
            f"engine.retention_budget is {engine.retention_budget:g}: expected a part, 0 to 1",
            field="engine.retention_budget",
        )


def _check_layout(engine: Engine) -> None:
    if engine.layout is None:
        if engine.build.connector is ConnectorKind.KVPLANE:
            raise InvalidRequest(
                "engine.layout is required for kvplane engines", field="engine.layout"
            )
        return
    for name in ("block_size", "total_blocks"):
        if getattr(engine.layout, name) < 1:
            raise InvalidRequest(
                f"engine.layout.{name} must be at least 1", field=f"engine.layout.{name}"
            )
    if engine.layout.tensor_parallel_size < 0:
        raise InvalidRequest(
            "engine.layout.tensor_parallel_size must not be negative",
            field="engine.layout.tensor_parallel_size",
        )
