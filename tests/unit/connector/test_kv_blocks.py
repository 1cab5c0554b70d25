from types import SimpleNamespace
from typing import Any

from kvplane_connector.kv_blocks import CacheGroup, KvBlocks, blocks_of_tokens, cache_groups
from tests.support.step_loop import Pool


def test_requests_take_blocks_of_each_group() -> None:
    """A window takes no more than it is long; its blocks need not begin where it does."""
    blocks = KvBlocks([CacheGroup(16), CacheGroup(16, most_tokens=64)])

    assert blocks.taken_by(0) == 0
    assert blocks.taken_by(17) == 2 + 2
    assert blocks.taken_by(1600) == 100 + 5


def test_groups_are_vllms() -> None:
    """Windows are read from the specification, and ranks that share a context widen a block."""

    def group(**spec: Any) -> Any:
        return SimpleNamespace(kv_cache_spec=SimpleNamespace(**spec))

    config = SimpleNamespace(
        parallel_config=SimpleNamespace(decode_context_parallel_size=2),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=100),
    )
    kv_cache = SimpleNamespace(
        kv_cache_groups=[
            group(block_size=16, sliding_window=None),
            group(block_size=16, sliding_window=50),
            group(block_size=64),
            group(block_size=16, kv_cache_specs={"a": SimpleNamespace(sliding_window=None)}),
            group(block_size=16, kv_cache_specs={"a": SimpleNamespace()}),
        ]
    )

    assert cache_groups(config, kv_cache) == (
        CacheGroup(32),
        CacheGroup(32, 150),
        CacheGroup(128, by_position=False),
        CacheGroup(32),
        CacheGroup(32, by_position=False),
    )


def test_blocks_behind_the_tokens_are_left_out() -> None:
    """A block that was taken for a token which never came is no part of what was kept."""
    groups = CacheGroup(16), CacheGroup(32, most_tokens=64), CacheGroup(16, by_position=False)
    held = [1, 2, 3], [0, 4], [5, 6, 7]

    assert blocks_of_tokens(groups, held, 32) == ([1, 2], [0], [5, 6, 7])
    assert blocks_of_tokens(groups, held, 33) == ([1, 2, 3], [0, 4], [5, 6, 7])
    # What nothing is known of stays as it is.
    assert blocks_of_tokens((), held, 32) == held


def test_hits_that_somebody_holds_cost_nothing() -> None:
    """Cached blocks that are free are taken from the free ones; held ones are shared."""
    pool = Pool(10)
    blocks = KvBlocks([CacheGroup(16)])
    blocks.bind(pool)
    taken = pool.take(3) or []
    pool.cached = {"a": taken[0], "b": taken[1], "c": taken[2]}
    pool.give_back(taken[1:])
    request = SimpleNamespace(block_hashes=["a", "b", "c"])

    assert blocks.held_hits(request, 48) == {taken[0].block_id}
    assert blocks.held_hits(request, 15) == frozenset()
    assert blocks.holders(taken[0].block_id) == 1


def test_hits_of_several_groups_are_not_looked_up() -> None:
    """A request then seems to need more than it does."""
    blocks = KvBlocks([CacheGroup(16), CacheGroup(16)])
    blocks.bind(Pool(10))

    assert blocks.held_hits(SimpleNamespace(block_hashes=["a"]), 16) == frozenset()


def test_what_vllm_leaves_free_is_a_part_of_the_pool() -> None:
    """vLLM's watermark is of all its blocks, its stand-in block included."""
    blocks = KvBlocks([CacheGroup(16)], watermark=0.1)
    assert (blocks.total, blocks.free, blocks.kept_free, blocks.holders(1)) == (0, 0, 0, 0)
    blocks.bind(Pool(99))

    assert (blocks.total, blocks.free, blocks.kept_free) == (99, 99, 10)
