"""Runs a benchmark from the command line: progress, results, and what is left behind."""

import asyncio
import json
from pathlib import Path

from rich.console import Console

from kvplane_services.bench.figures import as_table
from kvplane_services.bench.load_engine import BenchError
from kvplane_services.bench.options import ScaleOptions
from kvplane_services.bench.scale import AIMS, measure
from kvplane_services.clock import SystemClock
from kvplane_services.errors import KvplaneError
from kvplane_services.local.errand import Progress, run_errand
from kvplane_services.local.processes import StartError


async def run_scale(options: ScaleOptions, *, json_file: Path | None, log_dir: Path | None) -> int:
    """Measures, prints the figures, and says on stderr how far it is.

    Args:
        options: What to measure.
        json_file: Where to write the document, if anywhere.
        log_dir: See `run_errand`.

    Returns:
        The exit code: 0 if everything was measured, however it came out; 1 if only some was;
        else see `run_errand`.

    """
    clock = SystemClock()

    async def work(folder: Path, say: Progress) -> int:
        document = await measure(options, log_dir=folder, say=say, clock=clock)
        out = Console()
        out.print(as_table(document, aims=AIMS))
        out.print(", ".join(f"{name} {value}" for name, value in document["versions"].items()))
        if json_file is not None:
            text = json.dumps(document, indent=2) + "\n"
            await asyncio.to_thread(json_file.write_text, text)
            say(f"wrote {json_file}")
        if failure := document.get("failure"):
            say(f"not everything was measured: {failure}")
            return 1
        return 0

    known = (BenchError, KvplaneError, StartError, OSError)
    return await run_errand("bench", work, known=known, log_dir=log_dir, clock=clock)
