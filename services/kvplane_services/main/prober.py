"""Probes the engines that the operator named."""

from collections.abc import Sequence

from kvplane_services.clock import Clock
from kvplane_services.engine.directory import EngineDirectory
from kvplane_services.errors import InvalidRequest
from kvplane_services.settings_sections import ProberSection


async def probe_named(
    engines: Sequence[str], *, section: ProberSection, directory: EngineDirectory, clock: Clock
) -> None:
    """Keeps the named engines registered until cancelled; returns at once if there is none.

    Raises:
        InvalidRequest: An engine is not of the form ROLE=URL, or is named twice.

    """
    if not engines:
        return
    # HTTP is an extra; only planes with named engines need it here.
    import aiohttp  # noqa: PLC0415 - see above

    from kvplane_services.adapters.vllm_http import (  # noqa: PLC0415 - see above
        NamedEngine,
        ProbePlan,
        Prober,
    )

    named = [NamedEngine.parse(text) for text in engines]
    endpoints = [one.endpoint for one in named]
    for endpoint in endpoints:
        if endpoints.count(endpoint) > 1:
            raise InvalidRequest(f"engine {endpoint} is named twice", field="engines")
    plan = ProbePlan(interval=section.interval, timeout=section.timeout, failures=section.failures)
    async with aiohttp.ClientSession() as session:
        await Prober(
            engines=named, directory=directory, session=session, clock=clock, plan=plan
        ).run()
