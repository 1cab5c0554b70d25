"""`kvplane bench scale`: how a plane does with many sessions.

The plane is real, one `kvplane up` for each replica, and so is etcd. Engines are simulated here
and speak the contract: they report a retention when a turn finishes, confirm what they are told
to give up, and heartbeat as often as they are asked to.
"""

import asyncio
import contextlib
import os
import platform
from collections.abc import AsyncGenerator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kvplane_services.bench.etcd_server import EtcdServer, borrowed_etcd, private_etcd
from kvplane_services.bench.figures import rounded
from kvplane_services.bench.fleet import Fleet
from kvplane_services.bench.load_engine import BenchError
from kvplane_services.bench.options import ScaleOptions
from kvplane_services.bench.phases import Phases
from kvplane_services.bench.planes import PlaneProcess, running_plane
from kvplane_services.bench.workload import Workload
from kvplane_services.clock import Clock
from kvplane_services.local.errand import Progress
from kvplane_services.local.processes import StartError
from kvplane_services.main.process import background

AIMS = {
    "grants_per_s": "2,000",
    "etcd_writes_per_renewal": "0",
    "bytes_per_session": "below 1,500",
}
# New retentions that one frame carries at most, as if so many turns finished meanwhile.
_BATCH = 4
# Seconds that a replica may take to start, and sessions a second that it reads meanwhile.
_START_PATIENCE, _SLOWEST_READ = 60.0, 500
# Nothing is forgotten meanwhile.
_LONG = 86_400


async def measure(
    options: ScaleOptions, *, log_dir: Path, say: Progress, clock: Clock
) -> dict[str, Any]:
    """Runs the benchmark; returns its document.

    Where the plane does not do what it should, the document has the figures until then, and
    says under "failure" what was wrong.

    Raises:
        BenchError: There is no etcd, or engines could not register.
        StartError: A process did not start.

    """
    workload = Workload(tokens=options.tokens)
    async with contextlib.AsyncExitStack() as stack:
        store, etcd = await stack.enter_async_context(
            _store(options.store, log_dir=log_dir, say=say, clock=clock)
        )

        async def plane(number: int) -> PlaneProcess:
            return await stack.enter_async_context(
                running_plane(
                    f"plane-{number}",
                    store=store,
                    settings=_settings(options),
                    patience=_START_PATIENCE + options.sessions / _SLOWEST_READ,
                    log_dir=log_dir,
                    clock=clock,
                )
            )

        planes = [await plane(number) for number in range(options.replicas)]
        fleet = Fleet(
            replicas=[one.grpc for one in planes],
            engines=options.engines,
            sessions=options.sessions,
            workload=workload,
            refresh=options.refresh,
            clock=clock,
        )
        stack.push_async_callback(fleet.close)
        say(f"registering {options.engines} engines")
        await fleet.register()
        run = Phases(options, fleet=fleet, planes=planes, etcd=etcd, say=say, clock=clock)
        etcd_version = await asyncio.to_thread(etcd.version) if etcd is not None else ""
        await stack.enter_async_context(background(*fleet.loops(batch=_BATCH)))
        failure = ""
        try:
            say(f"granting {options.sessions} leases, handles of {workload.handle_bytes} bytes")
            await run.grants()
            run.tell()
            say("renewing, and nothing else")
            await run.renewals()
            run.tell()
            say("superseding leases")
            await run.supersedes()
            run.tell()
            watched = planes[-1]
            if etcd is not None and len(planes) == 1:
                say("starting another replica, which watches")
                watched = await plane(1)
                run.figures["replica_start_s"] = watched.started_in
            say("timing grants until a watch shows them")
            await run.lag(watched.grpc)
        except (BenchError, StartError) as error:
            # What was measured until then took long, and holds.
            failure = str(error)
    document = _document(options, run, workload=workload, etcd_version=etcd_version)
    return {**document, **({"failure": failure} if failure else {})}


@contextlib.asynccontextmanager
async def _store(
    wanted: str, *, log_dir: Path, say: Progress, clock: Clock
) -> AsyncGenerator[tuple[str, EtcdServer | None]]:
    """What to give to `kvplane up --store`, and the etcd behind it."""
    if wanted == "memory":
        yield "", None
    elif wanted == "etcd":
        say("starting etcd")
        async with private_etcd(log_dir=log_dir, clock=clock) as server:
            yield f"etcd://{server.address}", server
    else:
        async with borrowed_etcd(wanted, clock=clock) as (url, server):
            yield url, server


def _settings(options: ScaleOptions) -> dict[str, str]:
    """The plane's settings: room for everything, and nothing is forgotten meanwhile."""
    return {
        "KVPLANE_LEASES__TTL": str(options.lease_ttl),
        "KVPLANE_LEASES__IDLE_KEEP": str(_LONG),
        "KVPLANE_REGISTRATION__TTL": "120",
        "KVPLANE_SESSIONS__TTL": str(_LONG),
        "KVPLANE_SESSIONS__MAX_SESSIONS": str(2 * options.sessions),
        "KVPLANE_STOP__DELAY": "0",
        "KVPLANE_LOG__LEVEL": "warning",
    }


def _document(
    options: ScaleOptions, run: Phases, *, workload: Workload, etcd_version: str
) -> dict[str, Any]:
    return {
        **{name: rounded(value) for name, value in run.figures.items()},
        "spread": {
            name: {
                "low": rounded(spread.low),
                "high": rounded(spread.high),
                "count": spread.count,
            }
            for name, spread in run.spread.items()
        },
        "load": {
            "sessions": options.sessions,
            "engines": options.engines,
            "replicas": options.replicas,
            "store": options.store.partition(":")[0],
            "history_tokens": options.tokens,
            "handle_bytes": workload.handle_bytes,
            "lease_ttl_s": options.lease_ttl,
            "retentions_per_frame": _BATCH,
            "handles_expire": options.refresh,
        },
        "machine": {"cores": len(os.sched_getaffinity(0)), "system": platform.platform()},
        "versions": {
            "kvplane": version("kvplane"),
            "python": platform.python_version(),
            "grpcio": version("grpcio"),
            "protobuf": version("protobuf"),
            **({"etcd": etcd_version} if etcd_version else {}),
        },
    }
