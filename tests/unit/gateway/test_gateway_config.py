from typing import Any

import pytest

from kvplane_services.errors import InvalidRequest
from kvplane_services.gateway.config import GatewayConfig


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"max_body_bytes": 0}, "gateway.max_body_bytes"),
        ({"prefill_timeout": 0}, "gateway.prefill_timeout"),
        ({"pull_timeout": 0}, "gateway.pull_timeout"),
        ({"shutdown_grace": -1}, "gateway.shutdown_grace"),
        ({"tenant_secret": "x" * 65}, "gateway.tenant_secret"),
        ({"prefill_keeps": frozenset({"stop"})}, "gateway.prefill_keeps"),
    ],
)
def test_values_that_cannot_work_are_refused(values: dict[str, Any], field: str) -> None:
    """A wrong value is refused by its name before anything starts."""
    with pytest.raises(InvalidRequest) as refusal:
        GatewayConfig(**values)

    assert refusal.value.field == field
