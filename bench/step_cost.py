"""What a step of a decode engine with 500 retentions costs with our connector and with vLLM's own.

Run under the engine's python, with the packages of this checkout:

    PYTHONPATH=clients/python:connector .venv-vllm/bin/python bench/step_cost.py [--json FILE]

vLLM's own scheduler and worker halves, and ours on top of them, without a model and with a NIXL
that only hands out notices. Timed is all that a step calls of the connector. Of ten steps, one has
a turn of 12,000 tokens that finishes, another gives up the blocks of the turn that it follows,
nine tenths of which they share: with vLLM's because they were read, with ours because the plane
released them; and with ours a third one hears of a read. Every hundredth finds all 500 renewed by
the plane. Both run in turns.
"""

import argparse
import gc
import itertools
import json
import queue
import statistics
import time
from collections import defaultdict, deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from vllm.v1.request import RequestStatus

from kvplane.client.retention import EndReason, Release, Renew
from kvplane.transfer_params import KEY, LOCAL_ONLY, TurnMark
from kvplane_connector.clock import EngineClock
from kvplane_connector.generation_words import SLOTS, WordMemory, WordSlots, WordTable
from kvplane_connector.kv_blocks import KvBlocks
from kvplane_connector.load_meter import LoadMeter
from kvplane_connector.pressure import MemoryPressure
from kvplane_connector.retentions import RetentionLedger
from kvplane_connector.scheduler import KvplaneScheduler
from kvplane_connector.step_rest import StepRest
from kvplane_connector.vllm_names import (
    NixlKVConnectorStats,
    NixlPullConnectorScheduler,
    NixlPullConnectorWorker,
)
from kvplane_connector.worker import KvplaneWorker

RETENTIONS, TOKENS, BLOCK = 500, 12_000, 16
BLOCKS_OF_TURN = TOKENS // BLOCK
STEPS, ROUNDS = 1000, 10
# Of ten steps, and of a hundred: what happens in which.
FINISHES, ENDS, READ, RENEWED = 0, 3, 6, 17
KINDS = {FINISHES: "one finishes", ENDS: "one ends", READ: "one is read"}
RUNNING = SimpleNamespace(
    num_scheduled_tokens={f"running {number}": 1 for number in range(32)},
    total_num_scheduled_tokens=32,
    finished_req_ids=set(),
)

_clock = EngineClock()


class Engine:
    """Both halves of a connector, and the retentions that they hold."""

    def __init__(self) -> None:
        self.notices: list[bytes] = []
        self.held: list[str] = []
        self._numbers = itertools.count()
        self._blocks: dict[str, list[int]] = {}
        self._free = deque(range(1, (RETENTIONS + 2) * BLOCKS_OF_TURN))
        self.scheduler: Any = None
        self.worker: Any = None

    def fill(self) -> None:
        """Finishes turns until `RETENTIONS` are held."""
        while len(self.held) < RETENTIONS:
            self.step(self.finishing())
        gc.collect()
        # As vLLM does once it has started.
        gc.freeze()

    def finishing(self) -> Any:
        """A turn that has run to its end."""
        number = next(self._numbers)
        tokens = [(number * 7 + index * 31) % 150_000 for index in range(TOKENS)]
        mark = {KEY: TurnMark("t", "m", "", f"session {number}").encode()}
        turn = SimpleNamespace(
            request_id=f"cmpl-{number}",
            kv_transfer_params={**LOCAL_ONLY, **mark},
            status=RequestStatus.FINISHED_STOPPED,
            num_computed_tokens=TOKENS - 1,
            num_tokens=TOKENS,
            all_token_ids=tokens,
            prompt_token_ids=tokens,
            prompt_embeds=None,
            prompt_is_token_ids=None,
            lora_request=None,
            cache_salt=None,
            mm_features=[],
        )
        self.scheduler.update_state_after_alloc(turn, None, 0)
        self.work()
        return turn

    def step(self, finishing: Any = None) -> float:
        """Seconds of CPU that a step's calls take; what else the machine does is left out."""
        blocks = self.blocks() if finishing is not None else ()
        start = time.thread_time()
        ended = self.work()
        if finishing is not None:
            # vLLM finds that out from what the step computed; workers hear of it with the next.
            retained, _ = self.scheduler.request_finished(finishing, blocks)
            if not retained:
                raise RuntimeError("the turn is not retained")
        took = time.thread_time() - start
        if finishing is not None:
            self.held.append(finishing.request_id)
            self._blocks[finishing.request_id] = blocks[0]
        for name in ended:
            self.held.remove(name)
            kept = set(self._blocks[self.held[-1]])
            self._free.extend(one for one in self._blocks.pop(name) if one not in kept)
        return took

    def blocks(self) -> tuple[list[int], ...]:
        """Of a turn: fresh ones, but for what it shares with the one that it follows."""
        shared: list[int] = []
        if len(self.held) >= RETENTIONS:
            shared = self._blocks[self.held[0]][: BLOCKS_OF_TURN * 9 // 10]
        fresh = [self._free.popleft() for _ in range(BLOCKS_OF_TURN - len(shared))]
        return ([*shared, *fresh],)

    def work(self) -> Any:
        """What a step calls of the halves; returns whose blocks it gave up."""
        meta = self.scheduler.build_connector_meta(RUNNING)
        self.worker.start_load_kv(meta)
        results = self.worker.get_transfer_results()
        output = SimpleNamespace(
            finished_sending=results.finished_sending,
            finished_recving=results.finished_recving,
            kv_connector_worker_meta=self.news(),
        )
        self.scheduler.update_connector_output(output)
        return results.finished_sending

    def news(self) -> Any:
        """What the worker tells beside vLLM's own."""
        return None

    def before(self, number: int) -> None:
        """What happens elsewhere before a step."""
        if number % 10 == ENDS:
            self.notices.append(f"{self.held[0]}:1".encode())

    def after(self) -> None:
        """What happens elsewhere after a step."""

    def take_notices(self) -> dict[str, list[bytes]]:
        """As NIXL does."""
        taken, self.notices = self.notices, []
        return {"reader": taken} if taken else {}


class StockEngine(Engine):
    """With vLLM's own connector."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = NixlPullConnectorScheduler.__new__(NixlPullConnectorScheduler)
        vars(self.scheduler).update(scheduler_state())
        # What vLLM leaves out of turns that the engine served by itself.
        self.scheduler.update_state_after_alloc = lambda request, *_: (
            self.scheduler._reqs_in_batch.add(request.request_id)  # noqa: SLF001 - as ours does
        )
        self.worker = NixlPullConnectorWorker.__new__(NixlPullConnectorWorker)
        vars(self.worker).update(worker_state(self))


class OurEngine(Engine):
    """With ours, under a plane."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = RetentionLedger(ttl=30, clamp_ttl=lambda ttl: ttl)
        blocks = KvBlocks()
        with mock.patch.object(NixlPullConnectorScheduler, "__init__", return_value=None):
            self.scheduler = KvplaneScheduler(
                None,
                "e",
                None,
                ledger=self.ledger,
                load=LoadMeter(blocks),
                pressure=MemoryPressure(ledger=self.ledger, blocks=blocks, clock=_clock),
                link=None,
                rest=StepRest(0.05),
            )
        vars(self.scheduler).update(scheduler_state())
        with mock.patch.object(
            NixlPullConnectorWorker,
            "__init__",
            lambda worker, *_: worker.__dict__.update(worker_state(self)),
        ):
            self.worker = KvplaneWorker(None, "e", None)
        table = WordTable(WordMemory(SLOTS))
        self.worker._words = table  # noqa: SLF001 - what it takes NIXL to register
        self.scheduler._slots = WordSlots({(0, 0): (table.address, table.start)})  # noqa: SLF001 - as above

    def news(self) -> Any:
        """What the facade takes to the scheduler."""
        return self.worker.take_news()

    def before(self, number: int) -> None:
        """The plane releases one, and renews all of them at times."""
        if number % 10 == ENDS:
            release = Release(self.held[0], "leases/l", 1, EndReason.SUPERSEDED)
            self.ledger.apply([release], sent_at=_clock.now())
        if number % 10 == READ:
            self.notices.append(f"{self.held[RETENTIONS // 2]}:1".encode())
        if number % 100 == RENEWED:
            renewals = [Renew(name, "leases/l", 1, 30.0) for name in self.held]
            self.ledger.apply(renewals, sent_at=_clock.now())

    def after(self) -> None:
        """The link reports what happened."""
        self.ledger.acknowledge(self.ledger.changes())


def scheduler_state() -> dict[str, Any]:
    """What vLLM's constructor sets of a scheduler half, as far as steps use it."""
    parallel = SimpleNamespace(decode_context_parallel_size=1, pipeline_parallel_size=1)
    return {
        "vllm_config": SimpleNamespace(parallel_config=parallel),
        "engine_id": "e",
        "block_size": BLOCK,
        "side_channel_host": "127.0.0.1",
        "side_channel_port": 5600,
        "transfer_tp_size": 1,
        "use_host_buffer": False,
        "is_bidirectional_kv_xfer_enabled": True,
        "decoder_kv_blocks_ttl": 480,
        "get_exchange_clipped_blocks": lambda block_ids, **_: block_ids,
        "_kv_lease_duration": 30,
        "_reqs_need_recv": {},
        "_reqs_need_save": {},
        "_reqs_need_send": {},
        "_reqs_in_batch": set(),
        "_reqs_not_processed": set(),
        "_heartbeat_by_engine": {},
        "_heartbeat_req_engine": {},
    }


def worker_state(engine: Engine) -> dict[str, Any]:
    """The same of a worker half."""
    return {
        "nixl_wrapper": SimpleNamespace(get_new_notifs=engine.take_notices),
        "transfer_topo": SimpleNamespace(),
        "tp_rank": 0,
        "pcp_rank": 0,
        "pcp_dcp_sharded": False,
        "use_host_buffer": False,
        "_has_mamba": False,
        "_is_hma_required": False,
        "enable_heterogeneous_attn_post_process": False,
        "_engine_clock_offset": {},
        "_recving_transfers": defaultdict(list),
        "_recving_metadata": {},
        "_recv_failures": set(),
        "_replicated_pcp_done_sending": set(),
        "_failed_recv_reqs": queue.Queue(),
        "_ready_requests": queue.Queue(),
        "_reqs_to_send": {},
        "_reqs_to_process": set(),
        "consumer_notification_counts_by_req": defaultdict(int),
        "expected_consumer_notifications_by_req": {},
        "xfer_stats": NixlKVConnectorStats(),
        "_cleanup_remote_engines": lambda: None,
    }


def main() -> None:
    """Prints a line per engine and kind of step; writes JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    engines: dict[str, Engine] = {"stock": StockEngine(), "kvplane": OurEngine()}
    for engine in engines.values():
        engine.fill()
    found: dict[str, dict[str, list[float]]] = {
        name: {kind: [] for kind in ("quiet", "renewals", *KINDS.values())} for name in engines
    }
    for _ in range(ROUNDS):
        for name, engine in engines.items():
            for number in range(STEPS):
                finishing = engine.finishing() if number % 10 == FINISHES else None
                engine.before(number)
                took = engine.step(finishing)
                engine.after()
                kind = KINDS.get(number % 10, "quiet")
                # They are carried out over the steps that follow.
                if RENEWED <= number % 100 < RENEWED + 32:
                    kind = "renewals"
                found[name][kind].append(took * 1e6)
    figures = {
        name: {kind: spread(times) for kind, times in kinds.items()}
        | {"any": spread([*itertools.chain(*kinds.values())])}
        for name, kinds in found.items()
    }
    for kind in figures["stock"]:
        for name, of_kind in figures.items():
            values = (f"{key} {value:8.1f}" for key, value in of_kind[kind].items())
            print(f"{kind:12} {name:8}", *values)
    if arguments.json:
        arguments.json.write_text(json.dumps({"retentions": RETENTIONS, "microseconds": figures}))


def spread(times: list[float]) -> dict[str, float]:
    """Their median, 99th percentile and largest, in microseconds."""
    ordered = sorted(times)
    return {
        "median": round(statistics.median(ordered), 1),
        "p99": round(ordered[int(len(ordered) * 0.99)], 1),
        "largest": round(ordered[-1], 1),
    }


if __name__ == "__main__":
    main()
