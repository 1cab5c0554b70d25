import pytest

from kvplane_services.engine.model import EngineLoad
from kvplane_services.lease.policy import (
    Holding,
    few_blocks,
    lacks_blocks,
    leases_to_give_up,
    leases_to_keep,
)


def holding(
    token: int, *, blocks: int = 10, idle: float = 0.0, claimed: bool = False, worth: float = 0.0
) -> Holding:
    return Holding(f"l{token}", blocks, token, idle, claimed, worth)


def kept(*holdings: Holding, budget: float = 100.0) -> set[str]:
    return set(leases_to_keep(holdings, budget_blocks=budget, idle_keep=120.0))


def test_claimed_leases_come_first() -> None:
    """A claim outweighs age and idle time."""
    assert {"l1", "l3"} == kept(
        holding(1, blocks=60, idle=1e6, claimed=True),
        holding(2, blocks=40),
        holding(3, blocks=40),
    )


def test_claims_do_not_raise_the_budget() -> None:
    """Claimed blocks are memory like any other; of too many claimed leases the newest stay."""
    assert {"l2"} == kept(holding(1, blocks=80, claimed=True), holding(2, blocks=80, claimed=True))


def test_idle_leases_are_kept_for_a_while() -> None:
    """An unclaimed lease is kept until it was idle for its time, not after."""
    assert {"l2"} == kept(holding(1, idle=120.0), holding(2, idle=119.9))


def test_the_newest_are_kept_within_the_budget() -> None:
    """Where memory is short the oldest go, however many there are."""
    assert {"l3", "l2"} == kept(*(holding(token, blocks=40) for token in (1, 2, 3)))


def test_the_most_worth_are_kept_within_the_budget() -> None:
    """Worth outweighs age; a claim outweighs worth."""
    assert {"l1", "l3"} == kept(
        holding(1, blocks=40, worth=2.0),
        holding(2, blocks=40, worth=1.0),
        holding(3, blocks=40, claimed=True),
    )


def test_a_small_lease_fits_where_a_large_one_does_not() -> None:
    """A lease too large for what is left does not shut out older, smaller ones."""
    assert {"l3", "l1"} == kept(holding(1, blocks=20), holding(2, blocks=50), holding(3, blocks=80))


def test_without_budget_nothing_is_kept() -> None:
    """A budget of nothing keeps nothing, claimed or not."""
    assert set() == kept(holding(1), holding(2, claimed=True), budget=0.0)


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (EngineLoad(running_requests=3, waiting_requests=1, used_blocks=91), True),
        (EngineLoad(running_requests=3, waiting_requests=1, used_blocks=90), False),
        (EngineLoad(running_requests=3, waiting_requests=0, used_blocks=100), False),
        (EngineLoad(waiting_requests=1, used_blocks=30, retained_blocks=30), True),
        (EngineLoad(waiting_requests=1, used_blocks=30, retained_blocks=24), False),
        (EngineLoad(waiting_requests=1, used_blocks=95, retained_blocks=24), True),
        (EngineLoad(running_requests=0, waiting_requests=0, used_blocks=95), False),
    ],
)
def test_who_waits_for_blocks(*, load: EngineLoad, expected: bool) -> None:
    """Requests wait for memory where little is free, or where nothing else is in their way."""
    assert lacks_blocks(load, total_blocks=100, few_blocks=10) is expected


def test_few_blocks_are_those_that_the_next_turn_would_not_fit_into() -> None:
    """A part of all, or as many as the largest conversation takes."""
    assert few_blocks([], total_blocks=100, share=0.1) == 10
    assert few_blocks([holding(1, blocks=4)], total_blocks=100, share=0.1) == 10
    assert few_blocks([holding(1, blocks=27)], total_blocks=100, share=0.1) == 27


def test_the_least_worth_are_given_up_first() -> None:
    """However long they were idle."""
    holdings = [holding(1, idle=500.0, worth=3.0), holding(2, idle=5.0, worth=1.0)]

    assert leases_to_give_up(holdings, blocks=1) == {"l2"}


def test_the_longest_idle_are_given_up_as_far_as_needed() -> None:
    """What was used lately stays if less is enough; claimed leases are not given up."""
    holdings = [
        holding(1, idle=5.0),
        holding(2, idle=50.0),
        holding(3, idle=500.0, claimed=True),
        holding(4, idle=20.0),
    ]

    assert leases_to_give_up(holdings, blocks=0) == set()
    assert leases_to_give_up(holdings, blocks=1) == {"l2"}
    assert leases_to_give_up(holdings, blocks=11) == {"l2", "l4"}
    assert leases_to_give_up(holdings, blocks=1000) == {"l1", "l2", "l4"}
