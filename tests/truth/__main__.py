"""`python -m tests.truth`: see `make truth` and docs/truth.md."""

import argparse
import asyncio
import json
import shlex
import sys
from pathlib import Path

import aiohttp
from rich.console import Console

from kvplane_services.clock import SystemClock
from kvplane_services.local.errand import Progress, run_errand
from kvplane_services.local.processes import StartError
from tests.truth.run import Plan
from tests.truth.wiring import PLANTS, SOUND, run_truth


def main() -> None:
    """Runs and exits with 0 if every answer was right."""
    parser = argparse.ArgumentParser(prog="make truth", description=__doc__)
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--plant", choices=PLANTS, help="a fault that the run must notice")
    parser.add_argument("--logs", type=Path, help="where to keep logs")
    options = parser.parse_args()
    clock = SystemClock()

    async def work(folder: Path, say: Progress) -> int:
        report, more = await run_truth(
            Plan(turns=options.turns, seed=options.seed),
            connector=PLANTS.get(options.plant, SOUND),
            folder=folder,
            clock=clock,
            say=say,
        )
        command = shlex.join(["python", "-m", "tests.truth", *sys.argv[1:]])
        more |= {"seed": options.seed, "plant": options.plant, "command": command}
        document = report.document(more)
        if options.json is not None:
            await asyncio.to_thread(options.json.write_text, json.dumps(document, indent=2) + "\n")
        document.pop("differences")
        out = Console(highlight=False, markup=False, soft_wrap=True)
        out.print(json.dumps(document, indent=2))
        failures = report.failures()
        for failure in failures:
            out.print(f"FAILED {failure}")
        return 1 if failures else 0

    known = (StartError, aiohttp.ClientError, TimeoutError, OSError)
    sys.exit(asyncio.run(run_errand("truth", work, known=known, log_dir=options.logs, clock=clock)))


if __name__ == "__main__":
    main()
