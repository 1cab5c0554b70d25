from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from kvplane_connector.block_uses import BlockUses


def test_shared_blocks_count_once_and_stay_until_the_last_use_ends() -> None:
    """A later turn holds its predecessor's blocks and more."""
    uses = BlockUses()
    uses.add(frozenset({1, 2, 3}))
    uses.add(frozenset({1, 2, 3, 4}))
    assert len(uses) == 4

    uses.remove(frozenset({1, 2, 3}))
    assert len(uses) == 4
    uses.remove(frozenset({1, 2, 3, 4}))
    assert len(uses) == 0


@given(
    turns=st.lists(st.frozensets(st.integers(1, 12)), max_size=12),
    order=st.randoms(use_true_random=False),
)
def test_it_counts_as_a_counter_does(turns: list[frozenset[int]], order: Random) -> None:
    """Whatever is held, and in whatever order it ends."""
    uses, counted = BlockUses(), Counter[int]()
    for blocks in turns:
        uses.add(blocks)
        counted.update(blocks)
        assert len(uses) == len(+counted)
    leaving = list(turns)
    order.shuffle(leaving)
    for blocks in leaving:
        uses.remove(blocks)
        counted.subtract(blocks)
        assert len(uses) == len(+counted)
