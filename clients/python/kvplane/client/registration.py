"""What the plane grants to an engine that registers."""

from dataclasses import dataclass

from kvplane.api.engine.v1 import engine_pb2
from kvplane.client.engine_wire import seconds_of


@dataclass(frozen=True, slots=True)
class Registration:
    """What the plane granted; durations in seconds, `lease_ttl` for retentions without a lease."""

    name: str
    epoch: int
    ttl: float
    heartbeat_interval: float
    lease_ttl: float


def registration_of(answer: engine_pb2.RegisterEngineResponse) -> Registration:
    """The registration in an answer."""
    return Registration(
        name=answer.engine.name,
        epoch=answer.engine.epoch,
        ttl=seconds_of(answer.ttl),
        heartbeat_interval=seconds_of(answer.heartbeat_interval),
        lease_ttl=seconds_of(answer.lease_ttl),
    )
