from kvplane_services.lease.policy import Holding, leases_to_keep


def holding(token: int, *, blocks: int = 10, idle: float = 0.0, claimed: bool = False) -> Holding:
    return Holding(f"l{token}", blocks, token, idle, claimed)


def kept(*holdings: Holding, budget: float = 100.0) -> set[str]:
    return set(leases_to_keep(holdings, budget_blocks=budget, idle_keep=120.0))


def test_claimed_leases_are_kept_whatever_they_cost() -> None:
    """A claim outweighs budget and idle time."""
    assert {"l1", "l2"} == kept(
        holding(1, blocks=80, idle=1e6, claimed=True), holding(2, blocks=80, claimed=True)
    )


def test_idle_leases_are_kept_for_a_while() -> None:
    """An unclaimed lease is kept until it was idle for its time, not after."""
    assert {"l2"} == kept(holding(1, idle=120.0), holding(2, idle=119.9))


def test_the_newest_are_kept_within_the_budget() -> None:
    """Where memory is short the oldest go, however many there are."""
    assert {"l3", "l2"} == kept(*(holding(token, blocks=40) for token in (1, 2, 3)))


def test_claimed_leases_count_against_the_budget() -> None:
    """What claims take is not there for idle leases."""
    assert {"l1", "l3"} == kept(
        holding(1, blocks=60, claimed=True), holding(2, blocks=40), holding(3, blocks=40)
    )


def test_a_small_lease_fits_where_a_large_one_does_not() -> None:
    """A lease too large for what is left does not shut out older, smaller ones."""
    assert {"l3", "l1"} == kept(holding(1, blocks=20), holding(2, blocks=50), holding(3, blocks=80))


def test_without_budget_nothing_idle_is_kept() -> None:
    """A budget of nothing keeps claimed leases only."""
    assert {"l2"} == kept(holding(1), holding(2, claimed=True), budget=0.0)
