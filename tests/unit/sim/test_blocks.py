"""The account of KV blocks."""

import pytest

from kvplane_services.sim.blocks import BlockPool, OutOfBlocks

CONTEXT = b"context"


def _pool(total: int = 8, *, caching: bool = True) -> BlockPool:
    return BlockPool(total=total, block_size=4, caching=caching)


def test_block_zero_is_reserved() -> None:
    """The null block is never given out and never counted."""
    pool = _pool(3)

    assert sorted(pool.take(3)) == [1, 2, 3]
    assert (pool.used, pool.free) == (3, 0)


def test_too_few_blocks_change_nothing() -> None:
    """Asking for more than there are leaves the account as it was."""
    pool = _pool(3)
    pool.take(2)

    with pytest.raises(OutOfBlocks):
        pool.take(2)
    assert (pool.used, pool.free) == (2, 1)


def test_released_blocks_are_found_again() -> None:
    """A prompt finds the full blocks of its prefix after their user is gone."""
    pool = _pool()
    blocks = pool.take(3)
    pool.remember(blocks, range(10), CONTEXT)
    pool.release(blocks)

    assert pool.used == 0
    assert pool.find(list(range(12)), CONTEXT) == blocks[:2]


def test_a_hit_leaves_one_token_to_compute() -> None:
    """A prompt whose blocks are all cached still computes its last block."""
    pool = _pool()
    blocks = pool.take(2)
    pool.remember(blocks, range(8), CONTEXT)

    assert pool.find(list(range(8)), CONTEXT) == blocks[:1]


def test_hits_need_the_same_tokens_and_context() -> None:
    """Another token or another context shares nothing from there on."""
    pool = _pool()
    pool.remember(pool.take(3), range(12), CONTEXT)

    assert len(pool.find([0, 1, 2, 3, 9, 5, 6, 7, 8, 9], CONTEXT)) == 1
    assert pool.find(list(range(12)), b"other salt") == []


def test_no_hits_without_a_prefix_cache() -> None:
    """With caching off nothing is found."""
    pool = _pool(caching=False)
    pool.remember(pool.take(3), range(12), CONTEXT)

    assert pool.find(list(range(12)), CONTEXT) == []


def test_shared_blocks_count_once() -> None:
    """A block in two hands is one block, and free when both let go."""
    pool = _pool()
    first = pool.take(2)
    second = pool.take(1, shared=first)
    assert pool.used == 3

    pool.release(first)
    assert pool.used == 3
    pool.release(second)
    assert pool.used == 0


def test_a_hit_on_a_resting_block_takes_it_out_of_the_free_ones() -> None:
    """Reusing cached blocks needs room for them too."""
    pool = _pool(3)
    blocks = pool.take(2)
    pool.remember(blocks, range(8), CONTEXT)
    pool.release(blocks)

    with pytest.raises(OutOfBlocks):
        pool.take(2, shared=blocks)
    assert pool.take(1, shared=blocks)[:2] == blocks
    assert pool.free == 0


def test_the_longest_unused_block_goes_first_and_is_forgotten() -> None:
    """Memory is taken from what rested longest, whose content is then not found any more."""
    pool = _pool(4)
    old, young = pool.take(2), pool.take(2)
    pool.remember(old, range(8), CONTEXT)
    pool.remember(young, range(100, 108), CONTEXT)
    pool.release(old)
    pool.release(young)

    # The tail of a sequence goes before its head, which more prompts share.
    assert pool.take(1) == [old[1]]
    assert pool.find(list(range(9)), CONTEXT) == old[:1]
    assert pool.find(list(range(100, 109)), CONTEXT) == young


def test_content_outlives_release_until_it_is_overwritten() -> None:
    """A freed block reads as before; once somebody else writes, it reads as theirs."""
    pool = _pool(1)
    mine = pool.take(1)
    pool.write(mine, 0, [11, 12, 13, 14])
    before = pool.copy_out(mine[0])
    pool.release(mine)
    assert pool.copy_out(mine[0]) == before

    pool.write(pool.take(1), 0, [99])
    assert pool.copy_out(mine[0]) != before


def test_copied_content_reads_as_the_original() -> None:
    """What one engine copies out, another reads after copying it in."""
    one, other = _pool(), _pool()
    source, target = one.take(2), other.take(2)
    one.write(source, 0, range(7))
    for from_id, to_id in zip(source, target, strict=True):
        other.copy_in(to_id, one.copy_out(from_id))

    assert list(other.read(target, 7)) == list(range(7))


def test_misuse_is_refused() -> None:
    """Freeing twice, and reading blocks that do not exist, are errors."""
    pool = _pool()
    blocks = pool.take(1)
    pool.release(blocks)

    with pytest.raises(ValueError, match="not in use"):
        pool.release(blocks)
    with pytest.raises(IndexError):
        pool.copy_out(9)
