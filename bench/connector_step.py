"""What the connector costs vLLM's step loop, beside vLLM's own connector.

Run under the engine's python, with the packages of this checkout:

    PYTHONPATH=clients/python:connector .venv-vllm/bin/python bench/connector_step.py

Measures, in microseconds, in one process and in turns: `build_connector_meta`, the scheduler's
call of every step; `request_finished`, its call of every finished turn; and what the link's
own thread does for such a turn.
"""

import statistics
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

from vllm.v1.request import RequestStatus

from kvplane.client.retention import Renew
from kvplane.transfer_params import KEY, LOCAL_ONLY, TurnMark
from kvplane_connector.clock import EngineClock
from kvplane_connector.kv_blocks import KvBlocks
from kvplane_connector.load_meter import LoadMeter
from kvplane_connector.pressure import MemoryPressure
from kvplane_connector.retentions import RetentionLedger
from kvplane_connector.scheduler import KvplaneScheduler
from kvplane_connector.vllm_names import NixlPullConnectorScheduler

STEPS, TURNS, RENEWALS = 20_000, 500, 2_000
TOKENS, BLOCK = 12_000, 16
BLOCKS = (list(range(1, TOKENS // BLOCK + 1)),)
OUTPUT = SimpleNamespace(num_scheduled_tokens={f"r{n}": 1 for n in range(32)})

_clock = EngineClock()


def main() -> None:
    """Prints one line per measurement."""
    print(f"{'':52}{'median':>9}{'p99':>9}")
    for held in (0, 100):
        mine = ours(new_ledger(), held=held)
        for name, scheduler in (("stock", stock()), ("ours", mine)) * 2:
            times = [timed(lambda: scheduler.build_connector_meta(OUTPUT)) for _ in range(STEPS)]  # noqa: B023 - called at once
            show(f"build_connector_meta, {held} retentions, {name}", times)
    show("build_connector_meta, 100 renewed in this step", steps_with_renewals())
    show(f"request_finished, {TOKENS} tokens, stock", finishes(stock(), marked=False))
    show(f"request_finished, {TOKENS} tokens, ours", finishes(ours(new_ledger()), marked=True))
    show(f"link thread, report of {TOKENS} tokens", reports())


def steps_with_renewals() -> list[float]:
    """Times of steps in each of which 100 retentions have a new deadline."""
    ledger = new_ledger()
    scheduler = ours(ledger, held=100)
    times = []
    for later in range(RENEWALS):
        renewals = [Renew(f"r{n}", "leases/l", 1, 30.0 + later) for n in range(100)]
        ledger.apply(renewals, sent_at=_clock.now())
        times.append(timed(lambda: scheduler.build_connector_meta(OUTPUT)))
    return times


def finishes(scheduler: Any, *, marked: bool) -> list[float]:
    """Times of turns that finish."""
    requests = [finished_request(number, marked=marked) for number in range(TURNS)]
    return [timed(lambda: scheduler.request_finished(one, BLOCKS)) for one in requests]  # noqa: B023 - called at once


def reports() -> list[float]:
    """Times of making the report of one turn, digests and handle included."""
    ledger = new_ledger()
    scheduler = ours(ledger)
    times = []
    for number in range(TURNS):
        scheduler.request_finished(finished_request(number, marked=True), BLOCKS)
        times.append(timed(lambda: ledger.acknowledge(ledger.changes())))
    return times


def timed(call: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    start = _clock.now()
    call()
    return _clock.now() - start


def show(what: str, seconds: list[float]) -> None:
    """Prints the median and the 99th percentile in microseconds."""
    ordered = sorted(seconds)
    p99 = ordered[int(len(ordered) * 0.99)]
    print(f"{what:52}{statistics.median(ordered) * 1e6:9.2f}{p99 * 1e6:9.2f}")


def new_ledger() -> RetentionLedger:
    """A ledger without bounds."""
    return RetentionLedger(ttl=30, clamp_ttl=lambda ttl: ttl)


def ours(ledger: RetentionLedger, held: int = 0) -> Any:
    """Our scheduler half with retentions that the plane knows of."""
    with mock.patch.object(NixlPullConnectorScheduler, "__init__", return_value=None):
        blocks = KvBlocks()
        pressure = MemoryPressure(ledger=ledger, blocks=blocks, clock=_clock)
        load = LoadMeter(blocks)
        made = prepared(
            KvplaneScheduler(
                None, "e", None, ledger=ledger, load=load, pressure=pressure, link=None
            )
        )
    for number in range(held):
        made.request_finished(finished_request(number, marked=True), BLOCKS)
    made.build_connector_meta(OUTPUT)
    ledger.acknowledge(ledger.changes())
    return made


def stock() -> Any:
    """vLLM's scheduler half."""
    return prepared(NixlPullConnectorScheduler.__new__(NixlPullConnectorScheduler))


def prepared(scheduler: Any) -> Any:
    """Sets what vLLM's constructor would, as far as the measured calls use it."""
    parallel = SimpleNamespace(decode_context_parallel_size=1, pipeline_parallel_size=1)
    vars(scheduler).update(
        vllm_config=SimpleNamespace(parallel_config=parallel),
        engine_id="e",
        block_size=BLOCK,
        side_channel_host="127.0.0.1",
        side_channel_port=5600,
        transfer_tp_size=1,
        use_host_buffer=False,
        is_bidirectional_kv_xfer_enabled=True,
        decoder_kv_blocks_ttl=480,
        get_exchange_clipped_blocks=lambda block_ids, **_: block_ids,
        _kv_lease_duration=30,
        _reqs_need_recv={},
        _reqs_need_save={},
        _reqs_need_send={},
        _reqs_in_batch=set(),
        _reqs_not_processed=set(),
        _heartbeat_by_engine={},
        _heartbeat_req_engine={},
    )
    return scheduler


def finished_request(number: int, *, marked: bool) -> Any:
    """A turn of `TOKENS` tokens that stopped."""
    mark = {KEY: TurnMark("", "m", "", f"s{number}").encode()} if marked else {}
    tokens = list(range(TOKENS))
    return SimpleNamespace(
        request_id=f"r{number}",
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


if __name__ == "__main__":
    main()
