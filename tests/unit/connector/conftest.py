"""Stand-ins for vLLM's halves of a connector, which is not installed here, and ours on top."""

import importlib
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kvplane_connector.kv_blocks import KvBlocks
from kvplane_connector.load_meter import LoadMeter
from kvplane_connector.pressure import MemoryPressure
from kvplane_connector.retentions import RetentionLedger
from tests.support.clock import FakeClock
from tests.support.fake_nixl import FakeNixl

NIXL = "vllm.distributed.kv_transfer.kv_connector.v1"
OURS = ("scheduler", "worker", "vllm_names", "step_orders", "read_stats")
# By the stand-ins' clock.
NOW, STAGED_TTL, STOCK_TTL = 1000.0, 30.0, 480.0


class VllmStats:
    """As much of vLLM's counts as ours extend."""

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        self.data = data or {}
        if not self.data:
            self.reset()

    def reset(self) -> None:
        self.data = {"num_kv_expired_reqs": []}

    def is_empty(self) -> bool:
        return not self.data["num_kv_expired_reqs"]

    def reduce(self) -> dict[str, int | float]:
        return {}

    def record_kv_expired_req(self) -> None:
        self.data["num_kv_expired_reqs"].append(1)


class VllmMetrics:
    """As much of vLLM's metrics as ours extend."""

    def __init__(self, _: Any, metric_types: Any, labelnames: Any, per_engine: Any) -> None:
        self._counter_cls, self._histogram_cls = metric_types
        self.per_engine_labelvalues = per_engine
        self.observed: list[int] = []

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        assert "num_kv_expired_reqs" in transfer_stats_data
        self.observed.append(engine_idx)


@dataclass
class VllmPayload:
    compatibility_hash: str
    agent_metadata_bytes: bytes


class VllmWorker:
    """As much of vLLM's pull worker as ours extends.

    Attributes:
        polled: What the next poll finds: requests whose reads are all done, and those that failed.
        failed: What ours told of failures.
        sent: Requests whose blocks are not needed any more, for the next step.
        data_list: Prepared descriptors of data.
        serves_nothing: Whether another rank has the same KV, and is read from in its stead.

    """

    data_list = 0
    is_shut_down = False
    use_host_buffer = False
    serves_nothing = False

    def __init__(self, *_: Any) -> None:
        self.nixl_wrapper = FakeNixl()
        self.nixl_backends = ["UCX"]
        self._registered_descs: list[Any] = []
        self.xfer_handshake_metadata: Any = None
        self.dst_xfer_side_handles: dict[str, dict[Any, Any]] = defaultdict(dict)
        self._remote_agents = {"owner": {(0, 0): "agent"}}
        self._recving_transfers: dict[str, list[Any]] = {}
        self._recv_failures: set[str] = set()
        self._pending_recv_notifs: dict[str, list[tuple[str, bytes]]] = {}
        self.sent: set[str] = set()
        self.xfer_stats = VllmStats()
        self._reqs_to_send: dict[str, float] = {}
        self._reqs_to_process: set[str] = set()
        self._recving_metadata: dict[str, Any] = {}
        self._engine_clock_offset: dict[str, float] = {}
        self.consumer_notification_counts_by_req: dict[str, int] = {}
        self.expected_consumer_notifications_by_req: dict[str, int] = {}
        self.polled: Any = None
        self.failed: list[tuple[str, int | None]] = []

    def register_kv_caches(self, _: Any) -> None:
        self.xfer_handshake_metadata = VllmPayload("hash", b"meta")

    def start_load_kv(self, metadata: Any) -> None:
        if self.serves_nothing:
            return
        self._reqs_to_process |= set(metadata.reqs_in_batch)
        self._reqs_to_process -= set(metadata.reqs_not_processed)
        for name in metadata.reqs_to_send.keys() & self._reqs_to_process:
            self._reqs_to_send[name] = metadata.reqs_to_send[name]

    def _read_blocks(self, *, request_id: str, **_: Any) -> bool:
        # One descriptor stands for all of the data.
        data = self.nixl_wrapper.make_prepped_xfer(
            "READ", self.data_list, [0], self.data_list, [0], notif_msg=b"theirs:1"
        )
        self.nixl_wrapper.transfer(data)
        self._recving_transfers.setdefault(request_id, []).append(data)
        return True

    def get_transfer_results(self) -> Any:
        sending = self._get_new_notifs() | self.sent
        done, failed = self._pop_done_transfers(self._recving_transfers)
        self._recv_failures |= failed
        over = {name for name in self._recv_failures if name not in self._recving_transfers}
        self._recv_failures -= over
        for name in done | over:
            for agent, notice in self._pending_recv_notifs.pop(name, ()):
                if name not in over:
                    self.nixl_wrapper.send_notif(agent, notif_msg=notice)
        return SimpleNamespace(
            finished_sending=sending, finished_recving=done | over, failed_recving=over
        )

    def shutdown(self) -> None:
        self.is_shut_down = True

    def _send_pending_recv_notifs(self, name: str) -> None:
        raise AssertionError(f"the stand-in sends the notices of {name} by itself")

    def _get_new_notifs(self) -> set[str]:
        return set()

    def _pop_done_transfers(self, transfers: dict[str, list[Any]]) -> Any:
        """What a test set, or else a poll of the transfers, as vLLM's since 0.30."""
        if self.polled is not None:
            return self.polled
        done, failed = set(), set()
        for name, handles in list(transfers.items()):
            left = []
            for one in handles:
                state = self.nixl_wrapper.check_xfer_state(one)
                if state == "PROC":
                    left.append(one)
                elif state != "DONE":
                    failed.add(name)
            transfers[name] = left
            if not left:
                done.add(name)
                del transfers[name]
        return done, failed

    def _handle_failed_transfer(
        self, name: str, handle: int | None, failed: set[str] | None = None
    ) -> None:
        self.failed.append((name, handle))
        if failed is not None:
            failed.add(name)

    def _nixl_handshake(self, *_: Any, **__: Any) -> tuple[dict[Any, str], float]:
        return {(0, 0): "agent"}, 7.0

    def _is_turn2_read_expired(self, _: Any) -> bool:
        return False


class VllmScheduler:
    """As much of vLLM's pull scheduler as ours extends."""

    block_size = 128
    side_channel_host = "127.0.0.1"
    side_channel_port = 5600
    is_bidirectional_kv_xfer_enabled = True

    def __init__(self, _: Any, __: str, windows: Any) -> None:
        # One group of full attention unless a test says otherwise.
        self.blocks_per_sw = windows or (0,)
        self.decoder_kv_blocks_ttl = STOCK_TTL
        self._reqs_need_send: dict[str, float] = {}
        self._reqs_need_recv: dict[str, Any] = {}
        self._reqs_in_batch: set[str] = set()
        self._reqs_not_processed: set[str] = set()

    def set_xfer_handshake_metadata(self, _: Any) -> None:
        """Begins to listen."""

    def on_new_request(self, _: Any) -> None:
        """Keeps account of who waits."""

    def get_num_new_matched_tokens(self, _: Any, __: int) -> tuple[int, bool]:
        """Offers nothing."""
        return 0, False

    def update_state_after_alloc(self, request: Any, _: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            self._reqs_need_recv[request.request_id] = SimpleNamespace(remote=SimpleNamespace())

    def build_connector_meta(self, _: Any) -> Any:
        meta = SimpleNamespace(reqs_to_recv=self._reqs_need_recv, reqs_to_send=self._reqs_need_send)
        self._reqs_need_recv, self._reqs_need_send = {}, {}
        return meta

    def update_connector_output(self, _: Any) -> None:
        """Ends heartbeats."""

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        staged = bool(request.kv_transfer_params.get("do_remote_decode"))
        until = NOW + (STAGED_TTL if staged else self.decoder_kv_blocks_ttl)
        self._reqs_need_send[request.request_id] = until
        return True, {
            "do_remote_prefill": staged,
            "do_remote_decode": not staged,
            "remote_block_ids": block_ids,
            "remote_request_id": request.request_id,
            "remote_blocks_expiry_time": None if staged else until,
        }

    @staticmethod
    def _nixl_handshake_listener(*_: Any) -> None:
        raise AssertionError("nobody listens here")


@pytest.fixture
def connector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Imports a module of the connector on top of the stand-ins."""
    parts: dict[str, dict[str, Any]] = {
        "vllm": {"__version__": "0.32.0"},
        f"{NIXL}.base": {"KVConnectorRole": object, "KVConnectorWorkerMetadata": object},
        f"{NIXL}.nixl.connector": {"NixlPullConnector": object},
        f"{NIXL}.nixl.metadata": {
            "NIXL_CONNECTOR_VERSION": 1,
            "NixlConnectorMetadata": object,
            "NixlHandshakePayload": VllmPayload,
        },
        f"{NIXL}.nixl.pull_scheduler": {"NixlPullConnectorScheduler": VllmScheduler},
        f"{NIXL}.nixl.pull_worker": {"NixlPullConnectorWorker": VllmWorker},
        f"{NIXL}.nixl.stats": {"NixlKVConnectorStats": VllmStats, "NixlPromMetrics": VllmMetrics},
    }
    for name, names in parts.items():
        module = ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
    for name in OURS:
        monkeypatch.delitem(sys.modules, f"kvplane_connector.{name}", raising=False)
    yield lambda name: importlib.import_module(f"kvplane_connector.{name}")
    for name in OURS:
        sys.modules.pop(f"kvplane_connector.{name}", None)


def new_scheduler(
    connector: Callable[[str], Any],
    ledger: RetentionLedger,
    blocks: KvBlocks | None = None,
    windows: tuple[int, ...] | None = None,
) -> Any:
    """Our scheduler on top of the stand-in, without a plane."""
    blocks = blocks or KvBlocks()
    pressure = MemoryPressure(ledger=ledger, blocks=blocks, clock=FakeClock())
    return connector("scheduler").KvplaneScheduler(
        None,
        "e",
        windows,
        ledger=ledger,
        load=LoadMeter(blocks),
        pressure=pressure,
        link=None,
        groups=blocks.groups,
    )


@pytest.fixture
def worker(connector: Callable[[str], Any]) -> Any:
    """Our worker on top of the stand-in; its clock stands at 0."""
    made = connector("worker").KvplaneWorker(None, "e", None)
    made._clock.now = lambda: 0.0
    return made
