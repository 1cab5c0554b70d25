"""Which retentions to give up for memory. Pure.

Turns of a conversation share blocks, with each other and with requests that run: a block comes
back only when nobody holds it any more. What a set of retentions would free is therefore counted
by block, from how many hold each.
"""

import heapq
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from kvplane_connector.worth import Worth


@dataclass(frozen=True, slots=True)
class Candidate:
    """A retention that could be given up, or is about to go.

    Attributes:
        name: The retention's id.
        blocks: The blocks it holds.
        worth: What is worth least goes first.

    """

    name: str
    blocks: AbstractSet[int]
    worth: Worth


@dataclass(frozen=True, slots=True)
class Choice:
    """What to give up: names in order, the least worth first.

    Attributes:
        names: The retentions.
        freed: Blocks that come back, those of retentions that are about to go included.
        enough: Whether that is as much as was needed.

    """

    names: tuple[str, ...]
    freed: int
    enough: bool


class _Freed:
    """Blocks that nobody would hold any more."""

    def __init__(self, holders: Callable[[int], int]) -> None:
        self._holders = holders
        self._left: dict[int, int] = {}
        self.blocks = 0

    def add(self, blocks: AbstractSet[int]) -> None:
        left, holders = self._left, self._holders
        for block in blocks:
            one = left.get(block)
            rest = left[block] = (holders(block) if one is None else one) - 1
            self.blocks += rest == 0

    def without(self, blocks: AbstractSet[int]) -> int:
        """Of these blocks, which were added, how many are free only because of that."""
        left = self._left
        return sum(left[block] == 0 for block in blocks)

    def remove(self, blocks: AbstractSet[int]) -> None:
        left = self._left
        for block in blocks:
            self.blocks -= left[block] == 0
            left[block] += 1


def choose(
    candidates: Iterable[Candidate],
    *,
    leaving: Iterable[Candidate] = (),
    holders: Callable[[int], int],
    needed: int,
    headroom: int = 0,
) -> Choice:
    """The cheapest retentions whose end frees as many blocks as are needed.

    Candidates are taken the least worth first. Those that turn out not to matter are spared, the
    most worth first: they free nothing, or others that had to be taken free more than enough. A
    few that fit into `headroom` are taken on top, so that the next request need not
    wait for a choice of its own; never one that is larger, for it is worth more where it is.

    Args:
        candidates: What could be given up.
        leaving: What is about to go in any case.
        holders: How many hold a block: retentions, and requests that run.
        needed: Blocks that have to come back, beside those that are free.
        headroom: Blocks that may come back beyond what is needed.

    Returns:
        The choice; if all candidates together are not enough, all that free anything.

    """
    freed = _Freed(holders)
    for one in leaving:
        freed.add(one.blocks)
    if freed.blocks >= needed:
        return Choice((), freed.blocks, enough=True)
    # Most of them are never looked at: a heap is cheaper than an order of all.
    heap = [(one.worth, index, one) for index, one in enumerate(candidates)]
    heapq.heapify(heap)
    taken: list[Candidate] = []
    while heap and freed.blocks < needed:
        one = heapq.heappop(heap)[2]
        freed.add(one.blocks)
        taken.append(one)
    enough = freed.blocks >= needed
    spared: set[str] = set()
    for one in reversed(taken):
        alone = freed.without(one.blocks)
        surplus = freed.blocks > needed + headroom and freed.blocks - alone >= needed
        if not alone or surplus:
            freed.remove(one.blocks)
            spared.add(one.name)
    names = [one.name for one in taken if one.name not in spared]
    while heap and enough and freed.blocks < needed + headroom:
        one = heapq.heappop(heap)[2]
        freed.add(one.blocks)
        if not freed.without(one.blocks) or freed.blocks > needed + headroom:
            freed.remove(one.blocks)
            break
        names.append(one.name)
    return Choice(tuple(names), freed.blocks, enough)
