"""Which settings fit together."""

from typing import Any

import pytest

from kvplane_services.session.config import SessionConfig


@pytest.mark.parametrize(
    "values",
    [
        {"ttl": 1.0},
        {"min_ttl": 0.0},
        {"keep_for": 0.5},
        {"claim_interval": 16.0},
        {"sweep_interval": 0.0},
        {"max_sessions": 0},
        {"max_turns": 0},
        {"lost_grace": -1.0},
        {"save_patience": -1.0},
        {"remember_deleted": -1.0},
        {"store_wait": 0.0},
    ],
)
def test_values_that_do_not_fit_together(values: dict[str, Any]) -> None:
    """A configuration under which claims would lapse is refused at construction."""
    with pytest.raises(ValueError, match="must"):
        SessionConfig(**values)
