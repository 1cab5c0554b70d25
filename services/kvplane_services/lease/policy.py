"""Which idle leases are worth keeping. Pure.

Claimed leases are always kept. Idle ones are kept for a while after their last use, newest
first, as long as the kept leases take no more than a part of their engine's memory.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Holding:
    """A live lease as the policy sees it; `idle` in seconds since its last use."""

    lease_id: str
    blocks: int
    fencing_token: int
    idle: float
    claimed: bool


def leases_to_keep(
    holdings: Iterable[Holding], *, budget_blocks: float, idle_keep: float
) -> AbstractSet[str]:
    """Ids of the leases of one engine that are to be renewed.

    Args:
        holdings: All live leases of the engine.
        budget_blocks: KV blocks that leases may take. Claimed leases count against it and are
            kept beyond it.
        idle_keep: How long after its last use an unclaimed lease may be kept, in seconds.

    """
    newest_first = sorted(holdings, key=lambda holding: holding.fencing_token, reverse=True)
    kept = {holding.lease_id for holding in newest_first if holding.claimed}
    used = sum(holding.blocks for holding in newest_first if holding.claimed)
    for holding in newest_first:
        if holding.claimed or holding.idle >= idle_keep:
            continue
        if used + holding.blocks <= budget_blocks:
            kept.add(holding.lease_id)
            used += holding.blocks
    return kept
