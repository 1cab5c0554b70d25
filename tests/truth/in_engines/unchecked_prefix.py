"""A planted fault: every prompt is taken for the continuation of what a handle's blocks hold."""

from typing import Any
from unittest import mock

from kvplane_connector.prefix_check import Cut, Outcome
from tests.support.in_engines.held_reads import KvplaneConnector as Connector


def _trusting(
    params: dict[str, Any], chain: object, prompt: list[int], context: bytes, block_size: int
) -> Cut:
    offered = params["remote_num_tokens"]
    tokens = min(offered, len(prompt))
    blocks = -(-tokens // block_size)
    cut = [list(ids[:blocks]) for ids in params["remote_block_ids"]]
    return Cut(Outcome.WHOLE, offered, tokens, cut)


class KvplaneConnector(Connector):
    """See the module."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        mock.patch("kvplane_connector.scheduler.cut_handle", _trusting).start()
        super().__init__(vllm_config, role, kv_cache_config)
