"""What comes in place of handles, and what vLLM would do with it."""

from collections.abc import Callable
from typing import Any

import pytest

from kvplane_connector.kv_blocks import CacheGroup, KvBlocks
from kvplane_connector.retentions import RetentionLedger
from kvplane_connector.usable_handle import NeededBlocks, drop_handle, is_usable
from tests.unit.connector.conftest import new_scheduler
from tests.unit.connector.test_scheduler_prefix import TOKENS, leg

HANDLE: dict[str, Any] = {
    "do_remote_decode": False,
    "do_remote_prefill": True,
    "remote_block_ids": [[7, 8, 9]],
    "remote_engine_id": "p",
    "remote_request_id": "r",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "remote_num_tokens": 260,
    "remote_blocks_expiry_time": 5000.0,
    "tp_size": 1,
    "dcp_size": 1,
    "pp_size": 1,
}


@pytest.fixture
def scheduler(connector: Callable[[str], Any]) -> Any:
    """An engine whose only cache group has blocks of 128 tokens."""
    ledger = RetentionLedger(ttl=20.0, clamp_ttl=lambda ttl: ttl)
    return new_scheduler(connector, ledger, KvBlocks([CacheGroup(128)]))


@pytest.mark.parametrize(
    "handle",
    [
        HANDLE,
        {name: value for name, value in HANDLE.items() if not name.endswith("_size")},
        HANDLE | {"remote_num_tokens": None},
        HANDLE | {"remote_block_ids": ((7, 8, 9), ())},
        {"do_remote_decode": True, "do_remote_prefill": False, "remote_block_ids": None},
        {},
    ],
)
def test_what_vllm_sends_is_usable(handle: dict[str, Any]) -> None:
    """Handles of every version, and requests without one."""
    assert is_usable(handle)


@pytest.mark.parametrize(
    "changed",
    [
        {"remote_block_ids": "abc"},
        {"remote_block_ids": {"0": [1]}},
        {"remote_block_ids": [[-1]]},
        {"remote_block_ids": [[1 << 31]]},
        {"remote_block_ids": [[True]]},
        {"remote_block_ids": [[1.0]]},
        {"remote_block_ids": [5]},
        {"remote_engine_id": [1]},
        {"remote_engine_id": None},
        {"remote_engine_id": "\ud800"},
        {"remote_request_id": [1]},
        {"remote_request_id": 7},
        {"remote_request_id": ""},
        {"remote_request_id": "\udfff"},
        {"remote_request_id": "r" * 1025},
        {"remote_host": 127},
        {"remote_port": "5600"},
        {"remote_port": 0},
        {"remote_port": 1 << 16},
        {"remote_num_tokens": "many"},
        {"remote_num_tokens": -1},
        {"tp_size": "1"},
        {"tp_size": None},
        {"dcp_size": 0},
        {"pp_size": [1]},
        {"remote_block_ids": None, "remote_engine_id": [1]},
    ],
)
def test_what_is_no_handle_is_dropped(scheduler: Any, changed: dict[str, Any]) -> None:
    """The request is computed; nothing of it reaches vLLM, in whose step loop it would raise."""
    request = leg(kv_transfer_params=HANDLE | changed)

    scheduler.on_new_request(request)

    params = request.kv_transfer_params
    assert not params["do_remote_prefill"]
    assert params["remote_block_ids"] is None
    assert params["remote_engine_id"] is None
    assert scheduler.get_num_new_matched_tokens(request, 0) == (0, False)


@pytest.mark.parametrize(
    ("blocks", "left"),
    [([[7, 8]], [[7, 8]]), ([[7]], None), ([[7, 8], [9, 10]], None)],
)
def test_a_decode_leg_has_the_blocks_of_its_prompt(
    scheduler: Any, blocks: list[list[int]], left: list[list[int]] | None
) -> None:
    """With fewer, or other groups, vLLM's worker would fail while it begins the read."""
    request = leg(kv_transfer_params=HANDLE | {"remote_block_ids": blocks})
    request.prompt_token_ids = TOKENS[:200]

    scheduler.on_new_request(request)

    assert request.kv_transfer_params["remote_block_ids"] == left


@pytest.mark.parametrize("blocks", [[[7]], [[7, 8], [7, 8]]])
def test_a_whole_history_with_too_few_blocks_is_not_read(
    scheduler: Any, blocks: list[list[int]]
) -> None:
    """Nor is one of other cache groups."""
    request = leg()
    request.kv_transfer_params["remote_block_ids"] = blocks

    scheduler.get_num_new_matched_tokens(request, 0)

    assert request.kv_transfer_params["remote_block_ids"] is None
    assert scheduler.take_stats().data["kvplane_handles"] == [("short", len(TOKENS), 0)]


@pytest.mark.parametrize(
    "note", ["_kvplane_checked", "_remote_blocks_processed", "_p_side_truncated"]
)
def test_nobody_says_what_this_engine_has_done(scheduler: Any, note: str) -> None:
    """A note that came with a request neither skips the check nor anything else."""
    request = leg()
    request.kv_transfer_params |= {
        **{name: HANDLE[name] for name in HANDLE if name.startswith("remote_e")},
        "remote_request_id": "r",
        "remote_host": "h",
        "remote_port": 5600,
        note: True,
    }
    request.prompt_token_ids = [*reversed(TOKENS)]

    scheduler.on_new_request(request)
    scheduler.get_num_new_matched_tokens(request, 0)

    assert request.kv_transfer_params["remote_block_ids"] is None
    assert scheduler.take_stats().data["kvplane_handles"] == [("different", len(TOKENS), 0)]


def test_windows_and_states_need_less() -> None:
    """Of a window its tail is enough, and of a state nobody can tell."""
    groups = [CacheGroup(16), CacheGroup(32, 100), CacheGroup(64, by_position=False)]
    needed = NeededBlocks(groups, [0, 3, 0], block_size=16)

    def holds(*lengths: int, tokens: int = 160, block_size: int = 16, ranks: int = 1) -> bool:
        blocks = [list(range(length)) for length in lengths]
        return needed.are_in(blocks, tokens, block_size=block_size, ranks=ranks)

    assert holds(10, 3, 1)
    assert not holds(9, 3, 1)
    assert not holds(10, 2, 1)
    assert holds(2, 1, 1, tokens=20)
    assert not holds(10, 3, 1, block_size=8)
    assert holds(20, 3, 1, block_size=8)
    assert not holds(5, 3, 1, block_size=32), "no owner's blocks are larger than a reader's"
    assert holds(5, 3, 1, ranks=2)
    assert not holds(10, 3)


@pytest.mark.parametrize(
    ("blocks", "tokens"),
    [
        ([[1, 2], [12]], len(TOKENS)),
        ([[1, 2, 3], [13]], 0),
        ([[1, 2], [12, 13]], 0),
        ([[1], [12]], 0),
    ],
)
def test_a_windows_tail_ends_where_the_history_does(
    connector: Callable[[str], Any], blocks: list[list[int]], tokens: int
) -> None:
    """An owner that left in a block for a token behind a stop would be read one block off."""
    ledger = RetentionLedger(ttl=20.0, clamp_ttl=lambda ttl: ttl)
    groups = KvBlocks([CacheGroup(128), CacheGroup(128, 200)])
    windowed = new_scheduler(connector, ledger, groups, windows=(0, 1))
    request = leg()
    request.kv_transfer_params["remote_block_ids"] = blocks

    windowed.get_num_new_matched_tokens(request, 0)

    outcome = "whole" if tokens else "short"
    assert windowed.take_stats().data["kvplane_handles"] == [(outcome, len(TOKENS), tokens)]


def test_a_dropped_handle_is_none() -> None:
    """Nothing of it is left for anybody to work with."""
    params = dict(HANDLE)

    drop_handle(params)

    assert is_usable(params)
    assert not params["do_remote_prefill"]
