"""How hard property tests try."""

import os

import pytest
from hypothesis import HealthCheck, settings

# Multiplies the number of examples, for instance KVPLANE_TEST_EFFORT=50 overnight.
_FACTOR = int(os.environ.get("KVPLANE_TEST_EFFORT", "1"))
# Marks modules whose tests take as long as that needs: seconds, on a machine that is not busy.
TIMEOUT = pytest.mark.timeout(180 * _FACTOR)


def effort(*, max_examples: int, stateful_step_count: int) -> settings:
    """Settings of a state machine that takes seconds, or as much longer as the variable says."""
    return settings(
        max_examples=max_examples * _FACTOR,
        stateful_step_count=stateful_step_count,
        deadline=None,
        # The same examples in every ordinary run, so that a change is judged by what it changes;
        # with more effort others are looked for.
        derandomize=_FACTOR == 1,
        suppress_health_check=[HealthCheck.too_slow],
    )
