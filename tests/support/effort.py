"""How hard property tests try."""

import os

from hypothesis import HealthCheck, settings

# Multiplies the number of examples, for instance KVPLANE_TEST_EFFORT=50 overnight.
_VARIABLE = "KVPLANE_TEST_EFFORT"


def effort(*, max_examples: int, stateful_step_count: int) -> settings:
    """Settings of a state machine that takes seconds, or as much longer as the variable says."""
    factor = int(os.environ.get(_VARIABLE, "1"))
    return settings(
        max_examples=max_examples * factor,
        stateful_step_count=stateful_step_count,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
