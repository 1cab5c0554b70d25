"""Every name of vLLM that the connector uses, and what it relies on of each.

vLLM is the connector's host and is not installed where the project is checked, so the
names are declared here for type checkers; at run time they are vLLM's own.
"""

# ruff: noqa: D102 - vLLM documents its methods

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import enum
    import threading
    from collections.abc import Mapping, Sequence

    VLLM_VERSION: str
    NIXL_CONNECTOR_VERSION: int

    class KVConnectorRole(enum.Enum):
        """Which half of a connector to build."""

        SCHEDULER = 0
        WORKER = 1

    class KVCacheBlock:
        """A block of vLLM's pool; `ref_cnt` requests hold it."""

        block_id: int
        ref_cnt: int

    class BlockPool:
        """vLLM's pool of KV blocks. Block 0 is its stand-in for blocks that nobody needs."""

        num_gpu_blocks: int
        blocks: Sequence[KVCacheBlock]

        def get_num_free_blocks(self) -> int: ...
        def get_cached_block(
            self, block_hash: Any, kv_cache_group_ids: list[int]
        ) -> Sequence[KVCacheBlock] | None: ...

    class KVConnectorWorkerMetadata:
        """What workers tell the scheduler after a step."""

        def aggregate(self, other: Any) -> Any: ...

    class NixlHandshakePayload:
        """What a rank tells other engines at first contact."""

    class NixlKVConnectorStats:
        """What a worker counted since it reported last, by name of the count."""

        data: dict[str, list[Any]]

        def __init__(self, data: dict[str, list[Any]] = ...) -> None: ...
        def reset(self) -> None: ...
        def is_empty(self) -> bool: ...
        def reduce(self) -> dict[str, int | float]: ...
        def record_kv_expired_req(self) -> None: ...

    class NixlPromMetrics:
        """Where the stats of all workers become Prometheus metrics."""

        _counter_cls: Any
        _histogram_cls: Any
        per_engine_labelvalues: dict[int, list[object]]

        def __init__(
            self, vllm_config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any
        ) -> None: ...
        def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None: ...

    class NixlConnectorMetadata:
        """What the scheduler tells workers before a step."""

        reqs_to_recv: dict[str, Any]
        reqs_to_send: dict[str, float]
        reqs_in_batch: set[str]
        reqs_not_processed: set[str]

    class NixlPullConnectorScheduler:
        """The scheduler's half of vLLM's pull connector."""

        engine_id: str
        block_size: int
        side_channel_host: str
        side_channel_port: int
        decoder_kv_blocks_ttl: float
        blocks_per_sw: list[int]
        _reqs_need_send: dict[str, float]
        is_bidirectional_kv_xfer_enabled: bool
        _reqs_in_batch: set[str]
        _reqs_not_processed: set[str]

        def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any) -> None: ...
        def on_new_request(self, request: Any) -> None: ...
        def get_num_new_matched_tokens(
            self, request: Any, num_computed_tokens: int
        ) -> tuple[int, bool]: ...
        def update_state_after_alloc(
            self, request: Any, blocks: Any, num_external_tokens: int
        ) -> None: ...
        def build_connector_meta(self, scheduler_output: Any) -> NixlConnectorMetadata: ...
        def update_connector_output(self, connector_output: Any) -> None: ...
        def request_finished(
            self, request: Any, block_ids: Sequence[Sequence[int]]
        ) -> tuple[bool, dict[str, Any] | None]: ...
        def set_xfer_handshake_metadata(self, metadata: Mapping[Any, Any]) -> None: ...
        def shutdown(self) -> None: ...
        @staticmethod
        def _nixl_handshake_listener(*args: Any, **kwargs: Any) -> None: ...

    class NixlPullConnectorWorker:
        """The worker's half of vLLM's pull connector."""

        nixl_wrapper: Any
        nixl_backends: list[str]
        use_host_buffer: bool
        xfer_stats: Any
        xfer_handshake_metadata: NixlHandshakePayload | None
        dst_xfer_side_handles: dict[str, dict[Any, Any]]
        _registered_descs: list[Any]
        _remote_agents: dict[str, dict[tuple[int, int], str]]
        _recv_failures: set[str]
        _pending_recv_notifs: dict[str, list[tuple[str, bytes]]]
        _reqs_to_send: dict[str, float]
        _reqs_to_process: set[str]
        consumer_notification_counts_by_req: dict[str, int]
        _recving_metadata: dict[str, Any]
        _engine_clock_offset: dict[str, float]

        def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any) -> None: ...
        def register_kv_caches(self, kv_caches: dict[str, Any]) -> None: ...
        def start_load_kv(self, metadata: NixlConnectorMetadata) -> None: ...
        def get_transfer_results(self) -> Any: ...
        def shutdown(self) -> None: ...
        def _read_blocks(
            self, read_spec: Any, dst_engine_id: str, request_id: str, *args: Any, **kwargs: Any
        ) -> Any: ...
        def _get_new_notifs(self) -> set[str]: ...
        def _nixl_handshake(self, *args: Any, **kwargs: Any) -> tuple[dict[Any, str], float]: ...
        def _is_turn2_read_expired(self, meta: Any) -> bool: ...
        def _pop_done_transfers(
            self, transfers: dict[str, list[int]]
        ) -> tuple[set[str], set[str]] | set[str]: ...
        def _handle_failed_transfer(
            self, req_id: str, handle: int | None, failed_req_ids: set[str] | None = None
        ) -> Any: ...

    class NixlBaseConnector:
        """What vLLM's NIXL connectors have in common: they forward to their halves."""

        engine_id: str
        connector_scheduler: NixlPullConnectorScheduler | None
        connector_worker: NixlPullConnectorWorker | None

        def __init__(
            self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any
        ) -> None: ...
        def register_kv_caches(self, kv_caches: dict[str, Any]) -> None: ...
        def has_pending_block_frees(self) -> bool: ...
        def reset_cache(self) -> bool | None: ...
        def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None: ...
        def build_connector_worker_meta(self) -> Any: ...
        @classmethod
        def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Any: ...
        @classmethod
        def build_prom_metrics(
            cls, vllm_config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any
        ) -> Any: ...
        def get_kv_connector_stats(self) -> Any: ...

    class NixlPullConnector(NixlBaseConnector):
        """vLLM's pull connector; its constructor builds vLLM's own halves."""

    def vllm_listener(
        encoded_data: Any,
        ready_event: threading.Event,
        stop_event: threading.Event,
        *address: Any,
    ) -> None:
        """Serves vLLM's NIXL side channel until `stop_event`, or a message it cannot decode."""
        ...

    def nixl_agent_class() -> Any:
        """The class of NIXL's agent, as vLLM found it."""
        ...

    def engine_core_classes() -> tuple[Any, Any]:
        """The class of the process that steps an engine, and of one that steps with others.

        Of its instances: `_process_input_queue()` before each step, `input_queue`, `batch_queue`,
        `has_work()`, `is_running()`, and a `scheduler` with `get_kv_connector()`,
        `has_unfinished_requests()` and a `pause_state`, which is 0 while it is not paused.
        """
        ...

    def spin_condition_class() -> Any:
        """What a worker process waits with for its next step: `wait()` until `last_read` is old."""
        ...

else:
    from vllm import __version__ as VLLM_VERSION  # noqa: N812 - it is a constant

    from kvplane_connector.versions import require_fence, require_supported

    # Before the imports that an older vLLM has not got.
    require_supported(VLLM_VERSION)

    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorRole,
        KVConnectorWorkerMetadata,
    )
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPullConnector
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import (
        NIXL_CONNECTOR_VERSION,
        NixlConnectorMetadata,
        NixlHandshakePayload,
    )
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import (
        NixlPullConnectorScheduler,
    )
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import (
        NixlPullConnectorWorker,
    )
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import (
        NixlKVConnectorStats,
        NixlPromMetrics,
    )

    require_fence(NixlPullConnectorWorker, VLLM_VERSION)

    vllm_listener = NixlPullConnectorScheduler._nixl_handshake_listener  # noqa: SLF001 - see versions

    def nixl_agent_class() -> Any:
        """See above."""
        from vllm.distributed import nixl_utils  # noqa: PLC0415 - loads NIXL, for workers only

        return nixl_utils.NixlWrapper

    def engine_core_classes() -> tuple[Any, Any]:
        """See above."""
        from vllm.v1.engine import core  # noqa: PLC0415 - for the process that steps, only

        return (
            getattr(core, "EngineCoreProc", None),
            getattr(core, "DPEngineCoreProc", ()),
        )

    def spin_condition_class() -> Any:
        """See above."""
        from vllm.distributed.device_communicators import (  # noqa: PLC0415 - for workers only
            shm_broadcast,
        )

        return getattr(shm_broadcast, "SpinCondition", None)


__all__ = [
    "NIXL_CONNECTOR_VERSION",
    "VLLM_VERSION",
    "KVConnectorRole",
    "KVConnectorWorkerMetadata",
    "NixlConnectorMetadata",
    "NixlHandshakePayload",
    "NixlKVConnectorStats",
    "NixlPromMetrics",
    "NixlPullConnector",
    "NixlPullConnectorScheduler",
    "NixlPullConnectorWorker",
    "engine_core_classes",
    "nixl_agent_class",
    "spin_condition_class",
    "vllm_listener",
]
