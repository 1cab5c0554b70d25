"""Which leases are worth the memory that they take. Pure.

- A lease is renewed while it is claimed, and for a while after its last use.
- Leases that are renewed take at most a part of their engine's memory. Claimed ones come first,
  then those that are worth the most; a claim does not raise that bound.
- Where requests wait for memory, no lease is renewed, and idle ones are given up, the least worth
  first.

A lease that is not renewed still lasts until the expiry that its engine told to readers, which is
at most one TTL away. That bounds how long a request can wait because of leases.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from kvplane_services.engine.model import EngineLoad


@dataclass(frozen=True, slots=True)
class Holding:
    """A live lease as the policy sees it; `idle` in seconds since its last use.

    `worth`: see `worth_per_block`.
    """

    lease_id: str
    blocks: int
    fencing_token: int
    idle: float
    claimed: bool
    worth: float = 0.0


def leases_to_keep(
    holdings: Iterable[Holding], *, budget_blocks: float, idle_keep: float
) -> AbstractSet[str]:
    """Ids of the leases of one engine that are worth a renewal while nobody waits for memory.

    Args:
        holdings: All live leases of the engine.
        budget_blocks: KV blocks that leases may take, claimed ones included.
        idle_keep: How long after its last use an unclaimed lease may be kept, in seconds.

    """
    wanted = [holding for holding in holdings if holding.claimed or holding.idle < idle_keep]
    wanted.sort(
        key=lambda holding: (holding.claimed, holding.worth, holding.fencing_token), reverse=True
    )
    kept: set[str] = set()
    used = 0
    for holding in wanted:
        if used + holding.blocks <= budget_blocks:
            kept.add(holding.lease_id)
            used += holding.blocks
    return kept


def few_blocks(holdings: Iterable[Holding], *, total_blocks: int, share: float) -> float:
    """The free KV blocks of an engine that a request may well not fit into.

    A turn takes about as many as the conversation's last one left, so that the largest lease
    tells what the engine has to expect.

    Args:
        holdings: All live leases of the engine.
        total_blocks: Its KV blocks in all.
        share: The part of them that is few in any case.

    """
    return max(total_blocks * share, *(holding.blocks for holding in holdings), 0)


def lacks_blocks(load: EngineLoad, *, total_blocks: int, few_blocks: float) -> bool:
    """Whether requests seem to wait for KV blocks.

    They do if few are free. If retentions alone take blocks, they do however many are free:
    requests need different numbers, and nothing else is in their way. A request that reads from
    another engine computes nothing, but has its blocks.
    """
    if load.waiting_requests < 1:
        return False
    only_retained = load.running_requests < 1 and load.used_blocks <= load.retained_blocks
    return only_retained or total_blocks - load.used_blocks < few_blocks


def leases_to_give_up(holdings: Iterable[Holding], *, blocks: float) -> AbstractSet[str]:
    """Ids of the unclaimed leases to release for so many blocks, the least worth first."""
    given_up: set[str] = set()
    idle = (holding for holding in holdings if not holding.claimed)
    for holding in sorted(idle, key=lambda holding: (holding.worth, -holding.idle)):
        if blocks <= 0:
            break
        given_up.add(holding.lease_id)
        blocks -= holding.blocks
    return given_up
