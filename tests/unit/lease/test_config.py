from typing import Any

import pytest

from kvplane_services.lease.config import LeaseConfig


def test_renewals_are_three_to_a_ttl() -> None:
    """Unless told otherwise, two renewals may be lost before a lease is."""
    assert LeaseConfig(ttl=60.0).renew_interval == 20.0


@pytest.mark.parametrize(
    "values",
    [
        {"ttl": 0.0},
        {"ttl": -1.0},
        {"renew_interval": -1.0},
        {"ttl": 30.0, "renew_interval": 16.0},
        {"grace": -1.0},
        {"sweep_interval": 0.0},
        {"min_claim_ttl": 0.0},
        {"claim_ttl": 0.5},
        {"claim_ttl": 601.0},
        {"max_fixed_ttl": 0.0},
        {"idle_keep": -1.0},
        {"retention_budget": -0.1},
        {"retention_budget": 1.1},
        {"pressure_free": -0.1},
        {"pressure_free": 1.1},
        {"pressure_after": -1.0},
        {"remember_ended": -1.0},
        {"max_ended": 0},
        {"max_claims": 0},
    ],
)
def test_values_that_do_not_fit_together(values: dict[str, Any]) -> None:
    """A configuration under which leases could not be kept is refused at construction."""
    with pytest.raises(ValueError, match=r"must|need"):
        LeaseConfig(**values)


def test_wishes_are_clamped_at_both_ends() -> None:
    """What is asked for out of bounds is granted as far as the bounds go."""
    config = LeaseConfig()

    assert [config.clamp_claim(ttl) for ttl in (0.0, -5.0, 0.1, 1e9, 45.0)] == [
        30.0,
        1.0,
        1.0,
        600.0,
        45.0,
    ]
    assert [config.clamp_fixed(ttl) for ttl in (0.1, 1e9, 480.0)] == [0.1, 3600.0, 480.0]
