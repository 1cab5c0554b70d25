"""KvplaneConnector: vLLM's NIXL pull connector with leases, on both sides of a transfer.

    --kv-transfer-config '{"kv_connector": "KvplaneConnector",
      "kv_connector_module_path": "kvplane_connector.connector", "kv_role": "kv_consumer",
      "kv_connector_extra_config": {"kvplane": {"plane": "10.0.0.5:7000",
        "engine_id": "decode-0", "endpoint": "http://10.0.0.7:8000"}}}'

NIXL moves the data as it does for vLLM's own connector. Added: turns that carry a mark are
retained under leases and reported to the plane, reads do not consume, and a prefill
engine reads of a handle only what provably fits its prompt.
"""

import logging
from typing import Any

from kvplane_connector.clock import EngineClock
from kvplane_connector.engine_facts import gather_facts
from kvplane_connector.engine_stops import heed_stops
from kvplane_connector.kv_blocks import KvBlocks, cache_groups
from kvplane_connector.load_meter import LoadMeter
from kvplane_connector.nixl_backends import choice_of_backends, require_backends
from kvplane_connector.nixl_progress import progress_thread
from kvplane_connector.plane_link import PlaneLink
from kvplane_connector.pressure import MemoryPressure
from kvplane_connector.read_stats import ReadMetrics, ReadStats
from kvplane_connector.retentions import RetentionLedger
from kvplane_connector.scheduler import KvplaneScheduler
from kvplane_connector.settings import Settings, SettingsError, read_settings
from kvplane_connector.step_orders import StepNews
from kvplane_connector.step_rest import StepRest, rest_between_steps
from kvplane_connector.versions import watermark
from kvplane_connector.vllm_names import (
    NIXL_CONNECTOR_VERSION,
    VLLM_VERSION,
    KVConnectorRole,
    NixlPullConnector,
    engine_core_classes,
    nixl_agent_class,
    spin_condition_class,
)
from kvplane_connector.worker import KvplaneWorker
from kvplane_connector.worker_spin import WorkerSpin, spin_at_work_only


class KvplaneConnector(NixlPullConnector):
    """The facade that vLLM loads, once for the scheduler and once for each worker.

    Attributes:
        step_rest: When the engine may rest, which `step_rest.py` looks up here; None for never.

    Raises:
        SettingsError: The settings cannot be used.

    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        _log_as_vllm_does()
        transfer = vllm_config.kv_transfer_config
        settings = read_settings(transfer.kv_connector_extra_config, transfer.kv_role)
        _complete(transfer)
        # Past NixlPullConnector's own, which would build vLLM's halves, and a second NIXL agent.
        super(NixlPullConnector, self).__init__(vllm_config, role, kv_cache_config)
        self._kv_blocks = KvBlocks(
            cache_groups(vllm_config, kv_cache_config),
            watermark=watermark(vllm_config.scheduler_config),
        )
        self._pressure: MemoryPressure | None = None
        self._scheduler: KvplaneScheduler | None = None
        self._worker: KvplaneWorker | None = None
        self.step_rest: StepRest | None = None
        self.connector_scheduler = None
        self.connector_worker = None
        if role == KVConnectorRole.SCHEDULER:
            core_class, lockstep_class = engine_core_classes()
            heed_stops(core_class)
            # Without its progress thread an engine serves reads in steps alone.
            rests = settings.progress_thread and settings.rest_ms > 0
            if rests and rest_between_steps(core_class, lockstep_class):
                self.step_rest = StepRest(settings.rest_ms / 1000)
            self._scheduler = self._build_scheduler(vllm_config, kv_cache_config, settings)
            self.connector_scheduler = self._scheduler
        else:
            spin = WorkerSpin()
            spin_at_work_only(spin_condition_class(), spin)
            backends = transfer.kv_connector_extra_config.get("backends", ["UCX"])
            with (
                choice_of_backends(backends),
                progress_thread(
                    nixl_agent_class(),
                    enabled=settings.progress_thread,
                    delay_us=settings.progress_delay_us,
                ),
            ):
                self._worker = KvplaneWorker(
                    vllm_config,
                    self.engine_id,
                    kv_cache_config,
                    validate=settings.validate_reads,
                    spin=spin,
                )
            require_backends(backends, self._worker.nixl_wrapper)
            self.connector_worker = self._worker

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """See vLLM."""
        self._kv_blocks.bind(gpu_block_pool)

    def has_pending_block_frees(self) -> bool:
        """See vLLM, which asks this before it stops a request that runs for lack of blocks."""
        return self._pressure is not None and self._pressure.spares()

    def give_up_retentions(self) -> None:
        """The engine stops: see `engine_stops`, which looks this up here."""
        if self._scheduler is not None:
            self._scheduler.give_up_retentions()

    def reset_cache(self) -> bool | None:
        """See vLLM. Fails until nothing is retained, which it sees to."""
        return self._scheduler.give_up_retentions() if self._scheduler is not None else None

    def build_connector_worker_meta(self) -> StepNews | None:
        """See vLLM."""
        return self._worker.take_news() if self._worker is not None else None

    def get_kv_connector_stats(self) -> Any:
        """See vLLM, which asks the scheduler's as well as the workers'."""
        if self._scheduler is not None:
            return self._scheduler.take_stats()
        return super().get_kv_connector_stats()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> ReadStats:
        """See vLLM."""
        return ReadStats(data=data) if data is not None else ReadStats()

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any
    ) -> ReadMetrics:
        """See vLLM."""
        return ReadMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def _build_scheduler(
        self, vllm_config: Any, kv_cache_config: Any, settings: Settings
    ) -> KvplaneScheduler:
        ledger = RetentionLedger(ttl=settings.lease_ttl, clamp_ttl=settings.clamp_ttl)
        load = LoadMeter(self._kv_blocks)
        self._pressure = MemoryPressure(ledger=ledger, blocks=self._kv_blocks, clock=EngineClock())
        link = None
        if settings.plane:
            facts = gather_facts(
                vllm_config,
                settings,
                nixl_engine_id=self.engine_id,
                vllm_version=VLLM_VERSION,
                nixl_connector_version=NIXL_CONNECTOR_VERSION,
            )
            link = PlaneLink(
                target=settings.plane,
                facts=facts,
                ledger=ledger,
                load=load,
                on_orders=self.step_rest.wake if self.step_rest is not None else None,
            )
        return KvplaneScheduler(
            vllm_config,
            self.engine_id,
            kv_cache_config,
            ledger=ledger,
            load=load,
            pressure=self._pressure,
            link=link,
            rest=self.step_rest,
            groups=self._kv_blocks.groups,
        )


def _complete(transfer: Any) -> None:
    """Sets what the connector needs of vLLM's options and nobody would want otherwise."""
    if not transfer.kv_connector_extra_config.setdefault("bidirectional_kv_xfer", True):
        raise SettingsError(
            '"bidirectional_kv_xfer" in kv_connector_extra_config must be true, or left out: '
            "without it vLLM retains no turns, and reads blocks whatever their expiry"
        )
    # vLLM reads this after it has built the connector. A failed read is to cost time, not the turn.
    transfer.kv_load_failure_policy = "recompute"


def _log_as_vllm_does() -> None:
    vllm = logging.getLogger("vllm")
    for name in ("kvplane", "kvplane_connector"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = vllm.handlers, False
        logger.setLevel(vllm.getEffectiveLevel())
