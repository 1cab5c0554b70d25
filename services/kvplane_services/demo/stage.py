"""What the demo plays on: a plane and two engines, each a process of its own on loopback."""

import contextlib
import dataclasses
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kvplane_services.clock import Clock
from kvplane_services.demo.script import MODEL
from kvplane_services.local.engines import make_model, prefill_and_decode, running_engines
from kvplane_services.local.errand import Progress
from kvplane_services.local.processes import ManagedProcess, StartError, answers, free_ports

_POLL = 0.1
_PLANE_PATIENCE = 20.0
_SIM_PATIENCE = 20.0
_PAIR_PATIENCE = 20.0

# The demo's client forces strategies and reads what was done; both are off by default. The wait for
# a retention is generous, because engines, plane and client share the machine's few cores.
_PLANE_SETTINGS = {
    "KVPLANE_GATEWAY__ALLOW_STRATEGY_HEADER": "true",
    "KVPLANE_GATEWAY__RESPONSE_HEADERS": "true",
    "KVPLANE_ROUTER__RETENTION_WAIT": "0.5",
}


@dataclass(frozen=True, slots=True)
class Plane:
    """A running plane: its gateway's base URL, and the gRPC address that engines register at."""

    gateway: str
    grpc: str
    http_port: int


@contextlib.asynccontextmanager
async def running_plane(*, log_dir: Path, clock: Clock) -> AsyncGenerator[Plane]:
    """Starts `kvplane up` on free ports, waits until its gateway answers, and stops it at the end.

    Raises:
        StartError: It ended or did not answer in time; the message ends with its log's tail.

    """
    http_port, grpc_port = free_ports(2)
    grpc = f"127.0.0.1:{grpc_port}"
    process = _kvplane(
        "plane",
        ["up", "--http", f"127.0.0.1:{http_port}", "--grpc", grpc, "--stop-delay", "0"],
        _PLANE_SETTINGS,
        log_dir=log_dir,
        clock=clock,
    )
    try:
        await process.until_answers(http_port, "/health", patience=_PLANE_PATIENCE)
        yield Plane(f"http://127.0.0.1:{http_port}", grpc, http_port)
    finally:
        await process.stop()


async def until_pair_serves(plane: Plane, *, clock: Clock) -> None:
    """Waits until the plane knows engines that can serve.

    Raises:
        StartError: None registered in time.

    """
    deadline = clock.now() + _PAIR_PATIENCE
    while not await answers(plane.http_port, "/readyz"):
        if clock.now() > deadline:
            raise StartError(
                f"the engines serve, but did not register at the plane ({plane.grpc}) within "
                f"{_PAIR_PATIENCE:.0f} s; their logs say why"
            )
        await clock.sleep(_POLL)


@contextlib.asynccontextmanager
async def vllm_pair(
    plane: Plane,
    *,
    engine_python: Path,
    model_dir: Path,
    log_dir: Path,
    say: Progress,
    clock: Clock,
) -> AsyncGenerator[str]:
    """Two real engines on a model made here; yields the prefill engine's base URL.

    Raises:
        StartError: The model could not be made or an engine did not start.

    """
    say("making the tiny model (random weights, fixed seed)")
    await make_model(engine_python=engine_python, folder=model_dir, import_paths=())
    pair = [
        dataclasses.replace(options, model_name=MODEL)
        for options in prefill_and_decode(model_dir=model_dir, plane=plane.grpc)
    ]
    async with running_engines(
        *pair, engine_python=engine_python, log_dir=log_dir, progress=say, clock=clock
    ) as (prefill, _):
        yield prefill.url


@contextlib.asynccontextmanager
async def sim_pair(
    plane: Plane, *, log_dir: Path, say: Progress, clock: Clock
) -> AsyncGenerator[str]:
    """Two simulated engines; yields the prefill engine's base URL.

    Raises:
        StartError: An engine did not start.

    """
    ports = dict(zip(("prefill", "decode"), free_ports(2), strict=True))
    started: dict[int, ManagedProcess] = {}
    async with contextlib.AsyncExitStack() as stack:
        for role, port in ports.items():
            # As with the real pair, what the prefill engine does not compute, it read.
            caching = "--no-prefix-caching" if role == "prefill" else "--prefix-caching"
            process = _kvplane(
                f"{role}-0",
                [
                    *("sim-engine", "--role", role, "--http", f"127.0.0.1:{port}"),
                    *("--plane", plane.grpc, "--engine-id", f"{role}-0", "--model", MODEL, caching),
                ],
                {},
                log_dir=log_dir,
                clock=clock,
            )
            stack.push_async_callback(process.stop)
            started[port] = process
        for port, process in started.items():
            await process.until_answers(port, "/health", patience=_SIM_PATIENCE)
            say(f"{process.name}: ready")
        yield f"http://127.0.0.1:{ports['prefill']}"


def _kvplane(
    name: str, arguments: list[str], settings: Mapping[str, str], *, log_dir: Path, clock: Clock
) -> ManagedProcess:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("KVPLANE_")}
    return ManagedProcess(
        name=name,
        command=[sys.executable, "-m", "kvplane_services", *arguments],
        environment={**inherited, **settings},
        log=log_dir / f"{name}.log",
        clock=clock,
    )
