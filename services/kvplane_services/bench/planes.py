"""The plane's processes that a benchmark measures."""

import contextlib
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kvplane_services.bench.processes import Watched
from kvplane_services.clock import Clock
from kvplane_services.local.processes import ManagedProcess, free_ports


@dataclass(frozen=True, slots=True)
class PlaneProcess:
    """A replica: `kvplane up`."""

    name: str
    grpc: str
    process: Watched
    # Seconds from its start until it served.
    started_in: float


@contextlib.asynccontextmanager
async def running_plane(
    name: str,
    *,
    store: str,
    settings: Mapping[str, str],
    patience: float,
    log_dir: Path,
    clock: Clock,
) -> AsyncGenerator[PlaneProcess]:
    """Starts a replica, waits until it serves, and stops it at the end.

    Args:
        name: For messages and its log.
        store: As `kvplane up --store` takes it; empty for the default.
        settings: Environment variables.
        patience: Seconds that it may take to start: it reads all that is in the store.
        log_dir: Where its log goes.
        clock: Time.

    Raises:
        StartError: It ended or did not answer in time; the message ends with its log's tail.

    """
    http, grpc = free_ports(2)
    inherited = {
        key: value
        for key, value in os.environ.items()
        # How to prove to etcd who we are is not ours to choose.
        if not key.startswith("KVPLANE_") or key.startswith("KVPLANE_STORE__")
    }
    process = ManagedProcess(
        name=name,
        command=[
            *(sys.executable, "-m", "kvplane_services", "up"),
            *("--http", f"127.0.0.1:{http}", "--grpc", f"127.0.0.1:{grpc}"),
            *(("--store", store) if store else ()),
        ],
        environment={**inherited, **settings},
        log=log_dir / f"{name}.log",
        clock=clock,
    )
    try:
        took = await process.until_answers(http, "/health", patience=patience)
        yield PlaneProcess(name, f"127.0.0.1:{grpc}", Watched(process.pid), took)
    finally:
        await process.stop()
