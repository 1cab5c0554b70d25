"""Runs a benchmark from the command line: progress, results, and what is left behind."""

import asyncio
import json
import shutil
import signal
import tempfile
from pathlib import Path

from rich.console import Console

from kvplane_services.bench.figures import as_table
from kvplane_services.bench.load_engine import BenchError
from kvplane_services.bench.options import ScaleOptions
from kvplane_services.bench.scale import AIMS, measure
from kvplane_services.clock import SystemClock
from kvplane_services.errors import KvplaneError
from kvplane_services.local.processes import StartError


async def run_scale(options: ScaleOptions, *, json_file: Path | None, log_dir: Path | None) -> int:
    """Measures, prints the figures, and says on stderr how far it is.

    Args:
        options: What to measure.
        json_file: Where to write the document, if anywhere.
        log_dir: Where to keep the logs; None for a temporary folder, which is kept on failure.

    Returns:
        The exit code: 0 if everything was measured, however it came out; 128 and the signal's
        number after SIGINT or SIGTERM, which stop what was started.

    """
    out, err = Console(), Console(stderr=True, highlight=False)
    folder = log_dir or Path(tempfile.mkdtemp(prefix="kvplane-bench-"))
    folder.mkdir(parents=True, exist_ok=True)
    clock = SystemClock()
    started = clock.now()

    def say(line: str) -> None:
        err.print(f"[{clock.now() - started:6.1f} s] {line}", markup=False, soft_wrap=True)

    code = 1
    received: list[signal.Signals] = []
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(measure(options, log_dir=folder, say=say, clock=clock))

    def stop(number: signal.Signals) -> None:
        received.append(number)
        running.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        document = await running
        out.print(as_table(document, aims=AIMS))
        out.print(", ".join(f"{name} {value}" for name, value in document["versions"].items()))
        if json_file is not None:
            text = json.dumps(document, indent=2) + "\n"
            await asyncio.to_thread(json_file.write_text, text)
            say(f"wrote {json_file}")
        code = 0
    except asyncio.CancelledError:
        if not received:
            raise
        say(f"{received[0].name}: stopped everything that was started")
        code = 128 + received[0]
    except (BenchError, KvplaneError, StartError, OSError, ExceptionGroup) as error:
        known = _known(error)
        if known is None:
            raise
        err.print(f"kvplane bench: {known}", markup=False, soft_wrap=True)
    finally:
        if code == 0 and log_dir is None:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            say(f"logs are in {folder}")
    return code


def _known(error: Exception) -> Exception | None:
    """What is to be told of a failure; None for a bug. A TaskGroup wraps what its tasks raise."""
    if isinstance(error, ExceptionGroup):
        found = [_known(one) for one in error.exceptions]
        return None if None in found else found[0]
    known = BenchError | KvplaneError | StartError | OSError
    return error if isinstance(error, known) else None
