"""The account of an engine's KV blocks: who uses which, and what they hold.

The rules are vLLM's: a block is shared by whoever finds it in the prefix cache, a block that
nobody uses stays findable until its memory is needed, and the one unused for longest goes
first. Block 0 is reserved. What a block holds stays there until somebody else writes to it:
a reader of freed memory gets the old content, or the new one, and cannot tell.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


class OutOfBlocks(Exception):
    """There are not enough free blocks; nothing was changed."""


@dataclass(slots=True)
class Block:
    """One block. `references` counts users; `key` names its content in the prefix cache."""

    block_id: int
    slots: "array[int]"
    references: int = 0
    key: bytes | None = field(default=None)


class BlockPool:
    """All blocks of an engine.

    Args:
        total: Blocks that requests can use, the reserved one not counted.
        block_size: Tokens per block.
        caching: Whether blocks are found again by their tokens.

    """

    def __init__(self, *, total: int, block_size: int, caching: bool = True) -> None:
        if total < 1 or block_size < 1:
            raise ValueError("total and block_size must be at least 1")
        self.total = total
        self.block_size = block_size
        self._caching = caching
        self._blocks = [Block(i, array("Q", bytes(8 * block_size))) for i in range(total + 1)]
        # Unused blocks, the one to be taken next first.
        self._free: OrderedDict[int, None] = OrderedDict((i, None) for i in range(1, total + 1))
        self._cached: dict[bytes, int] = {}

    @property
    def free(self) -> int:
        """Blocks that nobody uses."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Blocks in use, shared ones counted once."""
        return self.total - len(self._free)

    def find(self, tokens: Sequence[int], context: bytes) -> list[int]:
        """The longest run of cached blocks for a prompt, first to last; takes nothing.

        One token at least is left to compute, so that there is something to sample from.
        """
        found: list[int] = []
        if not self._caching:
            return found
        for key in self._keys(tokens[: max(0, len(tokens) - 1)], context):
            block_id = self._cached.get(key)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def take(self, count: int, *, shared: Sequence[int] = ()) -> list[int]:
        """Takes blocks: those of `shared`, then `count` empty ones.

        Raises:
            OutOfBlocks: Too few are free.

        """
        resting = sum(block_id in self._free for block_id in shared)
        if count + resting > len(self._free):
            raise OutOfBlocks
        for block_id in shared:
            self._free.pop(block_id, None)
            self._blocks[block_id].references += 1
        fresh: list[int] = []
        for _ in range(count):
            block_id, _none = self._free.popitem(last=False)
            block = self._blocks[block_id]
            self._forget(block)
            block.references = 1
            fresh.append(block_id)
        return [*shared, *fresh]

    def release(self, block_ids: Sequence[int]) -> None:
        """Gives up one use of each block. The last ones of a sequence are reused first."""
        for block_id in reversed(block_ids):
            block = self._blocks[block_id]
            if block.references < 1:
                raise ValueError(f"block {block_id} is not in use")
            block.references -= 1
            if not block.references:
                self._free[block_id] = None

    def write(self, block_ids: Sequence[int], position: int, slots: Iterable[int]) -> None:
        """Writes the KV of tokens from `position` of a sequence on."""
        for offset, slot in enumerate(slots, start=position):
            index, inside = divmod(offset, self.block_size)
            self._blocks[block_ids[index]].slots[inside] = slot

    def read(self, block_ids: Sequence[int], tokens: int) -> Iterable[int]:
        """The KV of the first `tokens` of a sequence, whatever the blocks hold."""
        for index in range(-(-tokens // self.block_size)):
            yield from self._blocks[block_ids[index]].slots[: tokens - index * self.block_size]

    def copy_out(self, block_id: int) -> bytes:
        """The content of a block as it is now; unknown blocks are refused with IndexError."""
        if not 0 <= block_id <= self.total:
            raise IndexError(block_id)
        return self._blocks[block_id].slots.tobytes()

    def copy_in(self, block_id: int, content: bytes) -> None:
        """Overwrites a block with the content of another engine's."""
        self._blocks[block_id].slots = array("Q", content)

    def remember(self, block_ids: Sequence[int], tokens: Sequence[int], context: bytes) -> None:
        """Makes the full blocks of a sequence findable by its tokens."""
        if not self._caching:
            return
        for block_id, key in zip(block_ids, self._keys(tokens, context), strict=False):
            block = self._blocks[block_id]
            if block.key is None and key not in self._cached:
                block.key = key
                self._cached[key] = block_id

    def _forget(self, block: Block) -> None:
        if block.key is not None:
            self._cached.pop(block.key, None)
            block.key = None

    def _keys(self, tokens: Sequence[int], context: bytes) -> Iterable[bytes]:
        previous = context
        for start in range(0, len(tokens) - self.block_size + 1, self.block_size):
            chunk = array("I", tokens[start : start + self.block_size]).tobytes()
            previous = hashlib.blake2b(previous + chunk, digest_size=16).digest()
            yield previous
