"""Starts and stops real vLLM engines on this machine."""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplane_services.clock import Clock, SystemClock
from kvplane_services.local import vllm_command
from kvplane_services.local.errand import Progress
from kvplane_services.local.processes import ManagedProcess, StartError, free_ports
from kvplane_services.local.vllm_command import EngineOptions

# What vLLM logs on its way, and what to call it; the last one that was logged is shown.
_STAGES = (
    ("non-default args", "reading the model"),
    ("Initializing a V1 LLM engine", "starting the engine"),
    ("Loading weights", "loading weights"),
    ("Initializing NIXL", "setting up NIXL"),
    ("Starting vLLM server", "starting its server"),
)


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """A running engine."""

    options: EngineOptions
    process: ManagedProcess

    @property
    def name(self) -> str:
        """Its name in the plane."""
        return self.options.name

    @property
    def url(self) -> str:
        """Base URL of its OpenAI-compatible server."""
        return f"http://127.0.0.1:{self.options.port}"

    @property
    def log(self) -> Path:
        """Its log."""
        return self.process.log


@dataclass(frozen=True, slots=True)
class EnginePair:
    """One prefill and one decode engine."""

    prefill: LocalEngine
    decode: LocalEngine


def prefill_and_decode(
    *,
    model_dir: Path,
    plane: str = "",
    model_name: str = "kvplane-tiny",
    settings: Mapping[str, Any] | None = None,
) -> tuple[EngineOptions, EngineOptions]:
    """Options of a pair on free ports, to be amended with `dataclasses.replace`.

    The prefill engine has no prefix cache of its own, so that what it does not compute, it
    read; the decode engine has one.
    """
    ports = free_ports(4)
    prefill = EngineOptions(
        name="prefill-0",
        role="prefill",
        port=ports[0],
        side_channel_port=ports[1],
        model_dir=model_dir,
        model_name=model_name,
        plane=plane,
        settings=settings or {},
    )
    decode = EngineOptions(
        name="decode-0",
        role="decode",
        port=ports[2],
        side_channel_port=ports[3],
        model_dir=model_dir,
        model_name=model_name,
        plane=plane,
        settings=settings or {},
        prefix_caching=True,
    )
    return prefill, decode


@contextlib.asynccontextmanager
async def running_engines(
    *options: EngineOptions,
    engine_python: Path,
    log_dir: Path,
    import_paths: Sequence[Path] = (),
    startup_timeout: float = 180.0,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> AsyncGenerator[tuple[LocalEngine, ...]]:
    """Starts engines at once, waits until all serve, and stops them at the end.

    Args:
        options: The engines.
        engine_python: The python that has vLLM.
        log_dir: Where their logs go; made if missing.
        import_paths: Folders to import our packages from, if that python has not got them.
        startup_timeout: Seconds until all must serve.
        progress: Called with a line for people whenever there is something to say.
        clock: Time.

    Raises:
        StartError: An engine ended or was not ready in time; names it, its log and the log's tail.

    """
    clock = clock or SystemClock()
    say = progress or _say_nothing
    await asyncio.to_thread(log_dir.mkdir, parents=True, exist_ok=True)
    engines: list[LocalEngine] = []
    try:
        for one in options:
            process = ManagedProcess(
                name=one.name,
                command=vllm_command.command(engine_python, one),
                environment=vllm_command.environment(one, tuple(import_paths)),
                log=log_dir / f"{one.name}.log",
                clock=clock,
            )
            engines.append(LocalEngine(one, process))
        await _all_ready(engines, startup_timeout, say)
        yield tuple(engines)
    finally:
        await asyncio.gather(*(engine.process.stop() for engine in engines))


async def make_model(*, engine_python: Path, folder: Path, import_paths: Sequence[Path]) -> None:
    """Has the engine's python write the tiny model to `folder`, unless it is there already.

    Args:
        engine_python: The python that has vLLM.
        folder: Where to.
        import_paths: Folders to import our packages from, if that python has not got them.

    Raises:
        StartError: It failed; the message ends with why.

    """
    process = await asyncio.create_subprocess_exec(
        str(engine_python),
        *("-m", "kvplane_services.local.tiny_model", str(folder)),
        env={"PYTHONPATH": os.pathsep.join(map(str, import_paths)), "PYTHONSAFEPATH": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise StartError(f"the tiny model could not be written: {output.decode(errors='replace')}")


async def _all_ready(
    engines: Sequence[LocalEngine],
    patience: float,
    say: Progress,
) -> None:
    try:
        async with asyncio.TaskGroup() as tasks:
            for engine in engines:
                tasks.create_task(_ready(engine, patience, say))
    except* StartError as group:
        # The wait for the others was cancelled; the first that failed is the one to name.
        raise StartError(str(group.exceptions[0])) from None


async def _ready(engine: LocalEngine, patience: float, say: Progress) -> None:
    stage = ""

    def tell(waited: float) -> None:
        nonlocal stage
        if (now_at := _stage(engine)) != stage:
            stage = now_at
            say(f"{engine.name}: {stage} ({waited:.0f} s)")

    took = await engine.process.until_answers(
        engine.options.port, "/health", patience=patience, meanwhile=tell
    )
    say(f"{engine.name}: ready after {took:.0f} s")


def _stage(engine: LocalEngine) -> str:
    try:
        text = engine.log.read_text(errors="replace")
    except OSError:
        text = ""
    reached = [stage for sign, stage in _STAGES if sign in text]
    return reached[-1] if reached else "importing vLLM"


def _say_nothing(_: str) -> None:
    return
