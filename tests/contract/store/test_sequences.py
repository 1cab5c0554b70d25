"""Numbers that only grow."""

import asyncio
import itertools

from kvplane_services.clock import SystemClock
from kvplane_services.store.ports import Store


async def test_sequence_grows(store: Store) -> None:
    """Each number is larger than the one before, and larger than the time of day would give."""
    sequence = store.sequence("numbers")
    before = int(SystemClock().wall().timestamp() * 1_000_000)

    numbers = [await sequence.next() for _ in range(20)]

    assert sorted(set(numbers)) == numbers
    assert numbers[0] >= before


async def test_sequences_are_apart(store: Store) -> None:
    """Several numbers drawn at once follow each other, and belong to nobody else."""
    first = await store.sequence("blocks").next(10)
    second = await store.sequence("blocks").next()
    assert second >= first + 10


async def test_sequences_of_two_processes(store: Store, other: Store) -> None:
    """Numbers drawn at once are all different, and those drawn later are larger, whoever draws."""
    sequences = [store.sequence("numbers"), other.sequence("numbers")]
    latest = 0
    for _ in range(5):
        firsts = await asyncio.gather(
            *(sequences[n % 2].next(count) for n, count in enumerate((1, 3, 1, 2, 1, 4)))
        )
        numbers = sorted(
            itertools.chain(
                *(range(f, f + c) for f, c in zip(firsts, (1, 3, 1, 2, 1, 4), strict=True))
            )
        )
        assert len(set(numbers)) == 12
        assert numbers[0] > latest
        latest = numbers[-1]
