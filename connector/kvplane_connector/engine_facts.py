"""What the plane is told of an engine when it registers."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from kvplane_connector import __version__
from kvplane_connector.settings import Role, Settings
from kvplane_connector.versions import data_parallel_rank


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """An engine's identity and shape; see engine.proto for each field."""

    engine_id: str
    role: Role
    endpoint: str
    models: tuple[str, ...]
    labels: Mapping[str, str]
    nixl_engine_id: str
    block_size: int
    kv_dtype: str
    tensor_parallel_size: int
    data_parallel_rank: int
    data_parallel_size: int
    connector_version: str
    vllm_version: str
    nixl_version: str
    nixl_connector_version: int
    retention_budget: float | None = None


def gather_facts(
    vllm_config: Any,
    settings: Settings,
    *,
    nixl_engine_id: str,
    vllm_version: str,
    nixl_connector_version: int,
) -> EngineFacts:
    """Reads the facts out of vLLM's configuration."""
    parallel = vllm_config.parallel_config
    cache_dtype = str(vllm_config.cache_config.cache_dtype)
    if cache_dtype == "auto":
        cache_dtype = str(vllm_config.model_config.dtype).removeprefix("torch.")
    served = vllm_config.model_config.served_model_name
    ranks = parallel.data_parallel_size
    rank = data_parallel_rank(parallel)
    return EngineFacts(
        engine_id=f"{settings.engine_id}-dp{rank}" if ranks > 1 else settings.engine_id,
        role=settings.role,
        endpoint=settings.endpoint,
        models=(served,) if isinstance(served, str) else tuple(served),
        labels=settings.labels,
        nixl_engine_id=nixl_engine_id,
        block_size=vllm_config.cache_config.block_size,
        kv_dtype=cache_dtype,
        tensor_parallel_size=parallel.tensor_parallel_size,
        data_parallel_rank=rank,
        data_parallel_size=ranks,
        connector_version=__version__,
        vllm_version=vllm_version,
        nixl_version=_installed("nixl"),
        nixl_connector_version=nixl_connector_version,
        retention_budget=settings.retention_budget,
    )


def compatibility_hash(handshake_metadata: Mapping[Any, Any]) -> str:
    """Digest by vLLM of what two engines must have in common to exchange blocks."""
    for rank in handshake_metadata.values():
        if found := getattr(rank, "compatibility_hash", None):
            return str(found)
    return ""


def _installed(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
