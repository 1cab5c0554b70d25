"""Runs inside a real engine: the connector, with reads that a test can hold up.

While the file exists that "held_reads" of `kv_connector_extra_config` names, the engine stands
still between deciding to read and reading, as one that is stopped there or swapped out.
"""

import time
from pathlib import Path
from typing import Any

from kvplane_connector.connector import KvplaneConnector as Connector
from kvplane_connector.vllm_names import KVConnectorRole


class KvplaneConnector(Connector):
    """See the module."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        if self.connector_worker is None:
            return
        held = Path(vllm_config.kv_transfer_config.kv_connector_extra_config["held_reads"])
        wrapper = self.connector_worker.nixl_wrapper
        transfer = wrapper.transfer

        def transfer_unless_held(*args: Any, **kwargs: Any) -> Any:
            while held.exists():
                time.sleep(0.02)  # noqa: TID251 - stands still, and its engine with it
            return transfer(*args, **kwargs)

        wrapper.transfer = transfer_unless_held
