"""Everything that a run needs, put together, and the faults that it must notice."""

from pathlib import Path
from typing import Any

import aiohttp

from kvplane_services.clock import Clock
from kvplane_services.local.errand import Progress
from tests.truth.client import GatewayClient
from tests.truth.deployment import running_deployment
from tests.truth.references import RecomputingEngine, References
from tests.truth.report import Report
from tests.truth.run import Plan, Run

_IN_ENGINES = "tests.truth.in_engines"
# Modules of the prefill engine's connector. The first has no fault.
SOUND = "tests.support.in_engines.held_reads"
PLANTS = {
    "rotate": f"{_IN_ENGINES}.rotated_blocks",
    "digest": f"{_IN_ENGINES}.unchecked_prefix",
    "validation": f"{_IN_ENGINES}.unvalidated_reads",
}
# A turn waits for an engine's restart at most.
_TIMEOUT = aiohttp.ClientTimeout(total=240)


async def run_truth(
    plan: Plan, *, connector: str, folder: Path, clock: Clock, say: Progress
) -> tuple[Report, dict[str, Any]]:
    """Starts everything, runs the plan, and returns the report and the run's own figures."""
    began = clock.now()
    async with (
        aiohttp.ClientSession(timeout=_TIMEOUT) as http,
        running_deployment(
            folder=folder, http=http, connector=connector, clock=clock, say=say
        ) as deployment,
    ):
        started = clock.now()
        run = Run(
            plan=plan,
            deployment=deployment,
            client=GatewayClient(http, deployment.gateway),
            references=References(RecomputingEngine(http, deployment.prefill.url)),
            clock=clock,
            say=say,
        )
        report = await run.all_turns()
        figures = {
            "conversations": run.conversations,
            "restarts": deployment.restarts,
            "seconds_to_start": round(started - began, 1),
            "seconds_of_turns": round(clock.now() - started, 1),
        }
    return report, figures
