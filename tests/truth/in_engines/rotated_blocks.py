"""A planted fault: the block ids of a handle are rotated, so that reads fetch others' tokens."""

import dataclasses
from typing import Any
from unittest import mock

from kvplane_connector.prefix_check import cut_handle
from tests.support.in_engines.held_reads import KvplaneConnector as Connector


def _rotated(*args: Any) -> Any:
    cut = cut_handle(*args)
    return dataclasses.replace(cut, block_ids=[[*ids[1:], *ids[:1]] for ids in cut.block_ids])


class KvplaneConnector(Connector):
    """See the module."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        mock.patch("kvplane_connector.scheduler.cut_handle", _rotated).start()
        super().__init__(vllm_config, role, kv_cache_config)
