"""Counts how many retentions hold each block.

A long turn holds a thousand blocks, and begins and ends in vLLM's step loop. Most are held by one
turn, or by one and the next of the same conversation; so there is no counter per block but two
sets, which are joined and parted as wholes, and counters for what is held more often.
"""

from collections.abc import Set as AbstractSet


class BlockUses:
    """Blocks, each as often as it is used."""

    def __init__(self) -> None:
        self._used: set[int] = set()
        self._twice: set[int] = set()
        # Uses beyond the second.
        self._more: dict[int, int] = {}

    def __len__(self) -> int:
        """Blocks that are used, however often."""
        return len(self._used)

    def add(self, blocks: AbstractSet[int]) -> None:
        """One more uses these."""
        again = self._used & blocks
        self._used |= blocks
        if not again:
            return
        for block in self._twice & again:
            self._more[block] = self._more.get(block, 0) + 1
        self._twice |= again

    def remove(self, blocks: AbstractSet[int]) -> None:
        """One that was added uses these no longer."""
        if self._more and not self._more.keys().isdisjoint(blocks):
            often = self._more.keys() & blocks
            for block in often:
                if self._more[block] > 1:
                    self._more[block] -= 1
                else:
                    del self._more[block]
            blocks = blocks - often
        twice = self._twice & blocks
        self._twice -= twice
        self._used -= blocks - twice
