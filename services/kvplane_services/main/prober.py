"""Probes the engines that the operator named."""

from collections.abc import Coroutine, Sequence
from typing import Any

from kvplane_services.clock import Clock
from kvplane_services.engine.directory import EngineDirectory
from kvplane_services.errors import InvalidRequest
from kvplane_services.settings_sections import ProberSection


def prober_of(
    engines: Sequence[str], *, section: ProberSection, directory: EngineDirectory, clock: Clock
) -> tuple[Coroutine[Any, Any, None], ...]:
    """What keeps the named engines registered: one loop, or none if no engine is named.

    Raises:
        InvalidRequest: An engine is not of the form ROLE=URL, or is named twice.

    """
    if not engines:
        return ()
    # HTTP is an extra; only planes with named engines need it here.
    from kvplane_services.adapters.vllm_http import (  # noqa: PLC0415 - see above
        NamedEngine,
        ProbePlan,
        probe,
    )

    named = [NamedEngine.parse(text) for text in engines]
    endpoints = [one.endpoint for one in named]
    for endpoint in endpoints:
        if endpoints.count(endpoint) > 1:
            raise InvalidRequest(f"engine {endpoint} is named twice", field="engines")
    plan = ProbePlan(interval=section.interval, timeout=section.timeout, failures=section.failures)
    return (probe(named, directory=directory, clock=clock, plan=plan),)
