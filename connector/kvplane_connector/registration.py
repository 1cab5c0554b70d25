"""The registration message of an engine."""

from kvplane.api.engine.v1 import engine_pb2
from kvplane_connector.engine_facts import EngineFacts

_ROLES = {
    "prefill": engine_pb2.ROLE_PREFILL,
    "decode": engine_pb2.ROLE_DECODE,
    "both": engine_pb2.ROLE_BOTH,
}


def engine_message(
    facts: EngineFacts,
    *,
    nixl_host: str,
    nixl_port: int,
    total_blocks: int,
    compatibility_hash: str,
    validated_reads: bool,
) -> engine_pb2.Engine:
    """What to register: the engine's facts, and what is known once its workers are set up."""
    return engine_pb2.Engine(
        role=_ROLES[facts.role],
        endpoint=facts.endpoint,
        nixl=engine_pb2.NixlAddress(host=nixl_host, port=nixl_port, engine_id=facts.nixl_engine_id),
        models=facts.models,
        layout=engine_pb2.KvLayout(
            block_size=facts.block_size,
            total_blocks=total_blocks,
            dtype=facts.kv_dtype,
            tensor_parallel_size=facts.tensor_parallel_size,
            compatibility_hash=compatibility_hash,
        ),
        build=engine_pb2.EngineBuild(
            connector=engine_pb2.EngineBuild.CONNECTOR_KVPLANE,
            connector_version=facts.connector_version,
            vllm_version=facts.vllm_version,
            nixl_version=facts.nixl_version,
            nixl_connector_version=facts.nixl_connector_version,
            validated_reads=validated_reads,
        ),
        data_parallel_rank=facts.data_parallel_rank,
        data_parallel_size=facts.data_parallel_size,
        labels=facts.labels,
        retention_budget=facts.retention_budget,
    )
