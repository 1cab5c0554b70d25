"""The scheduler's half on a stand-in for vLLM's: what it retains, and gives up, under pressure."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kvplane.client.retention import EndReason
from kvplane.transfer_params import KEY, LOCAL_ONLY, TurnMark
from kvplane_connector.kv_blocks import CacheGroup, KvBlocks
from kvplane_connector.retentions import RetentionLedger
from tests.support.step_loop import Block, Pool
from tests.unit.connector.conftest import new_scheduler

BLOCK = 16
WORDS = SimpleNamespace(kvplane_words=(0x1000, 7))


@pytest.fixture
def pool() -> Pool:
    return Pool(20)


@pytest.fixture
def ledger() -> RetentionLedger:
    return RetentionLedger(ttl=30.0, clamp_ttl=lambda ttl: ttl)


@pytest.fixture
def scheduler(connector: Callable[[str], Any], ledger: RetentionLedger, pool: Pool) -> Any:
    """An engine of 20 blocks whose only rank has words."""
    blocks = KvBlocks([CacheGroup(BLOCK)])
    blocks.bind(pool)
    made = new_scheduler(connector, ledger, blocks)
    made.set_xfer_handshake_metadata({(0, 0): WORDS})
    return made


def request(name: str, tokens: int, **changes: Any) -> Any:
    mark = {KEY: TurnMark("t", "m", "", f"session of {name}").encode()}
    values = {
        "request_id": name,
        "kv_transfer_params": {**LOCAL_ONLY, **mark},
        "prompt_token_ids": list(range(tokens)),
        "all_token_ids": list(range(tokens + 1)),
        "num_tokens": tokens + 1,
        "num_computed_tokens": tokens,
        "block_hashes": [],
        "lora_request": None,
        "mm_features": None,
        "cache_salt": None,
    }
    return SimpleNamespace(**{**values, **changes})


def finish(scheduler: Any, pool: Pool, one: Any) -> tuple[bool, list[Block]]:
    taken = pool.take(-(-one.num_tokens // BLOCK)) or []
    retained, _ = scheduler.request_finished(one, ([block.block_id for block in taken],))
    if not retained:
        pool.give_back(taken)
    return retained, taken


def lack_blocks(scheduler: Any) -> Any:
    """A step in which a large request finds no blocks; returns its orders."""
    large = request("large", 15 * BLOCK, num_computed_tokens=0)
    scheduler.on_new_request(large)
    scheduler.get_num_new_matched_tokens(large, 0)
    return step(scheduler)


def step(scheduler: Any) -> Any:
    meta = scheduler.build_connector_meta(SimpleNamespace(num_scheduled_tokens={}))
    return getattr(meta, "kvplane", None)


def test_what_a_waiting_request_needs_is_ordered_with_the_same_step(
    scheduler: Any, ledger: RetentionLedger, pool: Pool
) -> None:
    """The workers free it in that step, and the plane hears of it as reclaimed."""
    for name in ("a", "b", "c"):
        finish(scheduler, pool, request(name, 6 * BLOCK - 4))
    step(scheduler)
    ledger.acknowledge(ledger.changes())

    assert lack_blocks(scheduler).release == {"a", "b", "c"}
    scheduler.update_connector_output(
        SimpleNamespace(finished_sending={"a", "b"}, kv_connector_worker_meta=None)
    )

    assert dict(ledger.changes().ended) == dict.fromkeys(("a", "b"), EndReason.RECLAIMED)


def test_a_turn_that_ends_while_another_waits_competes_for_memory(
    scheduler: Any, ledger: RetentionLedger, pool: Pool
) -> None:
    """It is retained if it can be given up at once; the least worth goes, which it need not be."""
    finish(scheduler, pool, request("a", 6 * BLOCK - 4))
    finish(scheduler, pool, request("a2", 6 * BLOCK - 4))
    lack_blocks(scheduler)

    retained, _ = finish(scheduler, pool, request("b", 3 * BLOCK - 4))

    assert retained
    assert ledger.may_be_freed_at("b") == 0.0


def test_without_words_nothing_is_retained_while_a_request_waits(
    connector: Callable[[str], Any], pool: Pool
) -> None:
    """Its blocks could not be given up before its expiry, and each turn would add one."""
    ledger = RetentionLedger(ttl=30.0, clamp_ttl=lambda ttl: ttl)
    blocks = KvBlocks([CacheGroup(BLOCK)])
    blocks.bind(pool)
    plain = new_scheduler(connector, ledger, blocks)
    plain.set_xfer_handshake_metadata({(0, 0): SimpleNamespace()})
    finish(plain, pool, request("a", 10 * BLOCK - 4))
    lack_blocks(plain)

    retained, _ = finish(plain, pool, request("b", 3 * BLOCK - 4))

    assert not retained
    assert ledger.retentions == 1


def test_what_cannot_be_reported_is_not_retained(
    scheduler: Any, ledger: RetentionLedger, pool: Pool
) -> None:
    """Nobody could read it, and it would be in no account."""
    unproved = request("a", 3 * BLOCK, prompt_token_ids=None)

    retained, _ = finish(scheduler, pool, unproved)

    assert not retained
    assert (ledger.retentions, pool.get_num_free_blocks()) == (0, 20)
