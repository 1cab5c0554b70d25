"""Engines on the wire and back."""

import sys

from kvplane.api.engine.v1 import engine_pb2 as pb
from kvplane_services.durations import duration, moment_of, seconds_of, timestamp
from kvplane_services.engine.model import (
    ConnectorKind,
    Engine,
    EngineBuild,
    EngineLoad,
    EngineState,
    FixedRetention,
    KvLayout,
    NixlAddress,
    Role,
)
from kvplane_services.errors import InvalidRequest

_ROLES_BACK = {
    Role.PREFILL: pb.ROLE_PREFILL,
    Role.DECODE: pb.ROLE_DECODE,
    Role.BOTH: pb.ROLE_BOTH,
}
_ROLES: dict[int, Role] = {value: role for role, value in _ROLES_BACK.items()}
_STATES_BACK = {
    EngineState.ACTIVE: pb.Engine.STATE_ACTIVE,
    EngineState.DRAINING: pb.Engine.STATE_DRAINING,
    EngineState.LOST: pb.Engine.STATE_LOST,
}
_STATES: dict[int, EngineState] = {value: state for state, value in _STATES_BACK.items()}
_CONNECTORS_BACK = {
    ConnectorKind.KVPLANE: pb.EngineBuild.CONNECTOR_KVPLANE,
    ConnectorKind.STOCK: pb.EngineBuild.CONNECTOR_STOCK,
}
_CONNECTORS: dict[int, ConnectorKind] = {value: kind for kind, value in _CONNECTORS_BACK.items()}


def engine_id_of(name: str, *, field: str = "name") -> str:
    """The id in `engines/{engine}`. Raises InvalidRequest."""
    collection, _, engine_id = name.partition("/")
    if collection != "engines" or not engine_id or "/" in engine_id:
        raise InvalidRequest(f"{field} {name!r} is not of the form engines/{{engine}}", field=field)
    # Every lease of the engine has it.
    return sys.intern(engine_id)


def role_of(value: int, *, field: str) -> Role:
    """The role of an enum value. Raises InvalidRequest if it is unset or unknown."""
    role = _ROLES.get(value)
    if role is not None:
        return role
    raise InvalidRequest(f"{field} is required: PREFILL, DECODE or BOTH", field=field)


def engine_from_wire(message: pb.Engine, *, engine_id: str | None = None) -> Engine:
    """The engine of a message.

    Args:
        message: An engine as registered, or as described by itself.
        engine_id: Its id; None to take it from the message's name.

    Raises:
        InvalidRequest: A required field is missing or an enum value is unknown.

    """
    build = message.build
    connector = _CONNECTORS.get(build.connector)
    if connector is None:
        raise InvalidRequest(
            "engine.build.connector is required: CONNECTOR_KVPLANE or CONNECTOR_STOCK",
            field="engine.build.connector",
        )
    return Engine(
        engine_id=engine_id_of(message.name) if engine_id is None else engine_id,
        role=role_of(message.role, field="engine.role"),
        endpoint=message.endpoint,
        models=tuple(message.models),
        build=EngineBuild(
            connector=connector,
            connector_version=build.connector_version,
            vllm_version=build.vllm_version,
            nixl_version=build.nixl_version,
            nixl_connector_version=build.nixl_connector_version,
            validated_reads=build.validated_reads,
        ),
        epoch=message.epoch,
        state=_STATES.get(message.state, EngineState.ACTIVE),
        nixl=_nixl_from_wire(message),
        layout=_layout_from_wire(message),
        data_parallel_rank=message.data_parallel_rank,
        data_parallel_size=max(1, message.data_parallel_size),
        labels=dict(message.labels),
        load=load_from_wire(message.load),
        create_time=moment_of(message.create_time),
        expire_time=moment_of(message.expire_time),
        drain_requested=message.drain_requested,
        fixed_retention=(
            fixed_retention_from_wire(message.fixed_retention)
            if message.HasField("fixed_retention")
            else None
        ),
        retention_budget=(
            message.retention_budget if message.HasField("retention_budget") else None
        ),
    )


def engine_to_wire(engine: Engine, *, replica: str = "") -> pb.Engine:
    """The message of an engine, whose home is that replica."""
    message = pb.Engine(
        name=engine.name,
        role=_ROLES_BACK[engine.role],
        state=_STATES_BACK[engine.state],
        epoch=engine.epoch,
        endpoint=engine.endpoint,
        models=engine.models,
        build=pb.EngineBuild(
            connector=_CONNECTORS_BACK[engine.build.connector],
            connector_version=engine.build.connector_version,
            vllm_version=engine.build.vllm_version,
            nixl_version=engine.build.nixl_version,
            nixl_connector_version=engine.build.nixl_connector_version,
            validated_reads=engine.build.validated_reads,
        ),
        data_parallel_rank=engine.data_parallel_rank,
        data_parallel_size=engine.data_parallel_size,
        labels=dict(engine.labels),
        load=load_to_wire(engine.load),
        drain_requested=engine.drain_requested,
        replica=replica,
        retention_budget=engine.retention_budget,
    )
    if engine.nixl is not None:
        message.nixl.host = engine.nixl.host
        message.nixl.port = engine.nixl.port
        message.nixl.engine_id = engine.nixl.engine_id
    if engine.layout is not None:
        message.layout.block_size = engine.layout.block_size
        message.layout.total_blocks = engine.layout.total_blocks
        message.layout.dtype = engine.layout.dtype
        message.layout.tensor_parallel_size = engine.layout.tensor_parallel_size
        message.layout.compatibility_hash = engine.layout.compatibility_hash
    if engine.fixed_retention is not None:
        message.fixed_retention.CopyFrom(fixed_retention_to_wire(engine.fixed_retention))
    if engine.create_time is not None:
        message.create_time.CopyFrom(timestamp(engine.create_time))
    if engine.expire_time is not None:
        message.expire_time.CopyFrom(timestamp(engine.expire_time))
    return message


def load_from_wire(message: pb.EngineLoad) -> EngineLoad:
    """The load of a message."""
    return EngineLoad(
        running_requests=message.running_requests,
        waiting_requests=message.waiting_requests,
        used_blocks=message.used_blocks,
        retained_blocks=message.retained_blocks,
        retentions=message.retentions,
    )


def load_to_wire(load: EngineLoad) -> pb.EngineLoad:
    """The message of a load."""
    return pb.EngineLoad(
        running_requests=load.running_requests,
        waiting_requests=load.waiting_requests,
        used_blocks=load.used_blocks,
        retained_blocks=load.retained_blocks,
        retentions=load.retentions,
    )


def fixed_retention_from_wire(message: pb.FixedRetention) -> FixedRetention:
    """What a message says of how an engine keeps turns."""
    return FixedRetention(ttl=seconds_of(message.ttl), trust_history=message.trust_history)


def fixed_retention_to_wire(fixed: FixedRetention) -> pb.FixedRetention:
    """The message of it."""
    return pb.FixedRetention(ttl=duration(fixed.ttl), trust_history=fixed.trust_history)


def _nixl_from_wire(message: pb.Engine) -> NixlAddress | None:
    if not message.HasField("nixl"):
        return None
    return NixlAddress(message.nixl.host, message.nixl.port, message.nixl.engine_id)


def _layout_from_wire(message: pb.Engine) -> KvLayout | None:
    if not message.HasField("layout"):
        return None
    layout = message.layout
    return KvLayout(
        block_size=layout.block_size,
        total_blocks=layout.total_blocks,
        dtype=layout.dtype,
        tensor_parallel_size=max(1, layout.tensor_parallel_size),
        compatibility_hash=layout.compatibility_hash,
    )
