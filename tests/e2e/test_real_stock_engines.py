"""Two real engines with vLLM's own NixlConnector, behind the plane and its gateway."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvplane.api.lease.v1 import lease_pb2
from kvplane.client.sync import SyncPlane
from kvplane.transfer_params import LOCAL_ONLY
from kvplane_services.local.engines import EnginePair, prefill_and_decode
from tests.e2e.stage import SYSTEM
from tests.e2e.stock_stage import TOKENS, Lease, StockStage, told_of
from tests.support.vllm_engines import ask, metric, recomputed, started, tiny_model

# The first test waits for the engines.
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

_OPTIONS = ",keeps=300,trust-history"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnginePair]:
    folder = tmp_path_factory.mktemp("stock")
    options = [
        dataclasses.replace(
            one,
            connector="stock",
            load_failure_policy="fail",
            extra_config={"decoder_kv_blocks_ttl": 300},
        )
        for one in prefill_and_decode(model_dir=tiny_model(folder))
    ]
    with started(options, folder / "logs") as (prefill, decode):
        yield EnginePair(prefill, decode)


@pytest.fixture
def stage(pair: EnginePair, tmp_path: Path) -> Iterator[StockStage]:
    with told_of(pair, tmp_path, options=_OPTIONS) as stage:
        yield stage


def expected(stage: StockStage, question: str = "") -> str:
    """What an engine answers to the history, and a question, that reuses nothing."""
    messages = [
        {"role": one["role"], "content": str(one.get("content", ""))} for one in stage.history
    ]
    if question:
        messages.append({"role": "user", "content": question})
    return recomputed(stage.pair, messages, max_tokens=TOKENS).text


def test_a_whole_answer_is_read_by_the_turn_that_continues_it_once(stage: StockStage) -> None:
    """vLLM counts the history as read over NIXL; a retry recomputes, and says the same."""
    stage.ask("The build failed in the replication test. Where do I look first?")
    lease = stage.wait_lease(1)
    right = expected(stage, "Is that the cause or a symptom?")

    second = stage.ask("Is that the cause or a symptom?")
    assert (second.strategy, second.pulled) == ("pull", lease.tokens)
    assert second.text == right

    del stage.history[-1]
    retried = stage.again()
    assert (retried.strategy, retried.pulled) == ("recompute", 0)
    assert retried.text == right


def test_an_edited_history_is_not_read(stage: StockStage) -> None:
    """The handle is good, but of other tokens, which nobody could prove."""
    stage.ask("The build failed. Where do I look first?")
    stage.wait_lease(1)
    stage.history[1] = {"role": "user", "content": "The build fails. Where do I look first?"}
    right = expected(stage, "And then?")

    second = stage.ask("And then?")

    assert (second.strategy, second.pulled) == ("recompute", 0)
    assert second.text == right


def test_a_turn_that_streams_leaves_no_lease_and_that_is_said(stage: StockStage) -> None:
    """vLLM prints no parameters into a stream."""
    first = stage.ask("Where do I look first?", stream=True)
    right = expected(stage, "And then?")
    second = stage.ask("And then?", stream=True)

    assert (second.strategy, second.pulled, second.text) == ("recompute", 0, right)
    assert stage.leases() == []
    assert "in answers that do not stream only" in stage.explained(first.session)


def test_a_read_that_vllm_declines_costs_a_recompute(stage: StockStage) -> None:
    """The engine answers 500 to it; the gateway asks the same engine to compute."""
    stage.ask("The disk is full. What do I delete?")
    _expire(stage, stage.wait_lease(1))
    right = expected(stage, "And then?")
    declined = metric(stage.pair.prefill, "vllm:nixl_num_failed_transfers_total")
    expired = metric(stage.pair.prefill, "vllm:nixl_num_kv_expired_reqs_total")

    second = stage.ask("And then?")

    assert (second.strategy, second.pulled, second.text) == ("recompute", 0, right)
    after = metric(stage.pair.prefill, "vllm:nixl_num_failed_transfers_total") + metric(
        stage.pair.prefill, "vllm:nixl_num_kv_expired_reqs_total"
    )
    assert after > declined + expired


def test_a_turn_that_is_served_alone_keeps_no_blocks(stage: StockStage) -> None:
    """It gets no parameters: what vLLM keeps for those, as the control shows, stays."""
    decode, question = stage.pair.decode, {"role": "user", "content": "Where do I look first?"}
    used = metric(decode, "vllm:kv_cache_usage_perc")

    said = stage.ask("Where do I look first?", strategy="local")
    assert said.strategy == "local"
    assert metric(decode, "vllm:kv_cache_usage_perc") == pytest.approx(used)
    assert stage.leases() == []

    ask(decode, [{"role": "system", "content": SYSTEM}, question], params=LOCAL_ONLY)
    assert metric(decode, "vllm:kv_cache_usage_perc") > used


def _expire(stage: StockStage, lease: Lease) -> None:
    """Has the session hold a handle whose time is over, which the plane takes for a good one."""
    handle = json.loads(lease.handle.kv_transfer_params)
    # On the clock of the engine's process, which started long after its machine.
    handle["remote_blocks_expiry_time"] = 1.0
    changed = Lease()
    changed.CopyFrom(lease)
    changed.retention_id = f"{lease.retention_id}-late"
    changed.handle.CopyFrom(lease_pb2.Handle(kv_transfer_params=json.dumps(handle).encode()))
    with SyncPlane(stage.plane.target) as client:
        client.run(client.leases.grant(changed, ttl=300.0))
    stage.wait_lease(2)
