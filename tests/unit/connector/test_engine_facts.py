from types import SimpleNamespace
from typing import Any

import pytest

from kvplane_connector.engine_facts import gather_facts
from kvplane_connector.settings import read_settings

SETTINGS: dict[str, Any] = {
    "kvplane": {"plane": "10.0.0.5:7000", "engine_id": "d0", "endpoint": "http://10.0.0.7:8000"}
}


@pytest.mark.parametrize(("ranks", "rank", "engine_id"), [(1, 0, "d0"), (4, 2, "d0-dp2")])
def test_each_data_parallel_rank_is_an_engine(ranks: int, rank: int, engine_id: str) -> None:
    """Ranks hold blocks of their own, so handles and leases are one rank's."""
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(
            data_parallel_size=ranks,
            data_parallel_rank=0,
            data_parallel_index=rank,
            tensor_parallel_size=1,
        ),
        cache_config=SimpleNamespace(cache_dtype="auto", block_size=16),
        model_config=SimpleNamespace(dtype="torch.bfloat16", served_model_name="it"),
    )

    facts = gather_facts(
        config,
        read_settings(SETTINGS, "kv_consumer"),
        nixl_engine_id="nixl",
        vllm_version="0.33.0",
        nixl_connector_version=14,
    )

    assert facts.engine_id == engine_id
    assert facts.data_parallel_rank == rank
