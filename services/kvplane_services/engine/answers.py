"""What the directory of engines answers to registrations and heartbeats."""

import enum
from dataclasses import dataclass

from kvplane_services.engine.model import Engine, EngineState


class HeartbeatOutcome(enum.Enum):
    """What a heartbeat did to a registration."""

    RENEWED = "renewed"
    FENCED = "fenced"
    NOT_FOUND = "not_found"


@dataclass(frozen=True, slots=True)
class Registration:
    """An engine as registered, and for how long, in seconds."""

    engine: Engine
    ttl: float
    heartbeat_interval: float


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """What a heartbeat did; durations in seconds, `ttl` and `engine` only if it was RENEWED."""

    outcome: HeartbeatOutcome
    heartbeat_interval: float
    engine: Engine | None = None
    ttl: float = 0.0
    drain_requested: bool = False


def refusal(engine: Engine | None, epoch: int) -> HeartbeatOutcome | None:
    """Why a heartbeat with that epoch does not count; None if it does."""
    if engine is None:
        return HeartbeatOutcome.NOT_FOUND
    if engine.epoch != epoch:
        return HeartbeatOutcome.FENCED
    return HeartbeatOutcome.NOT_FOUND if engine.state is EngineState.LOST else None
