"""`kvplane bench`: measures a plane on this machine."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    group = typer.Typer(
        help="Measure a plane on this machine, under simulated engines.", no_args_is_help=True
    )
    group.callback()(_benchmarks)
    group.command("scale")(scale)
    app.add_typer(group, name="bench")


def _benchmarks() -> None:
    """Measure a plane on this machine, under simulated engines."""


def scale(
    *,
    sessions: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="Sessions, each with a live lease.")
    ] = 100_000,
    engines: Annotated[
        int, typer.Option(min=1, max=10_000, help="Decode engines that hold them.")
    ] = 200,
    store: Annotated[
        str,
        typer.Option(
            metavar="memory|etcd|URL",
            help="Where the plane keeps its state: `memory`; `etcd` starts a private one from "
            "PATH, its data in memory; `etcd://HOST:PORT` takes one that runs, under a prefix of "
            "its own that is removed afterwards.",
        ),
    ] = "etcd",
    replicas: Annotated[
        int, typer.Option(min=1, max=16, help="Processes of the plane; more than one needs etcd.")
    ] = 1,
    seconds: Annotated[
        float,
        typer.Option(
            min=1, max=3600, help="How long renewals, and the watch, are measured, seconds each."
        ),
    ] = 10.0,
    history_tokens: Annotated[
        int,
        typer.Option(
            min=16, max=1_000_000, help="Tokens of each session's history; handles grow with it."
        ),
    ] = 2048,
    lease_ttl: Annotated[
        float,
        typer.Option(min=6, max=3600, help="TTL of leases, seconds; a third is between renewals."),
    ] = 30.0,
    refresh_handles: Annotated[
        bool,
        typer.Option(
            "--refresh-handles",
            help="Engines whose handles say an expiry, and change with every renewal.",
        ),
    ] = False,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="FILE",
            dir_okay=False,
            writable=True,
            help="Also write all figures there.",
        ),
    ] = None,
    log_dir: Annotated[
        Path | None,
        typer.Option(help="Keep logs there. [default: a temporary folder, kept if it fails]"),
    ] = None,
) -> None:
    """Measure grants, renewals, supersessions, watches and memory with many sessions.

    Starts etcd and a plane (`kvplane up`) on free loopback ports, and simulates engines that
    speak the real contract with handles as large as real ones. In turn: every session is granted
    a lease; leases are renewed, and nothing else happens; a fifth of the sessions take another
    turn; grants are timed until a watch at another replica shows them.

    kvplane bench scale --sessions 1000 --engines 10 --store memory --seconds 2

    kvplane bench scale --sessions 100000 --engines 200 --store etcd --json scale.json

    Figures: grants, renewals (all leases due at once) and supersessions per second; writes that
    etcd counts per renewal; milliseconds from sending a frame until another replica shows the
    lease; resident memory of the plane per session, and its CPU per 1,000 renewals. Engines and
    etcd share this machine's cores with the plane: other work on it shows in the figures.
    """
    from kvplane_services.bench.command import run_scale
    from kvplane_services.bench.options import ScaleOptions

    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise typer.BadParameter(
            f"{json_file.absolute().parent} is not a folder: make it first", param_hint="--json"
        )
    if store == "memory" and replicas > 1:
        raise typer.BadParameter(
            "more than one needs a store that they share: --store etcd", param_hint="--replicas"
        )
    options = ScaleOptions(
        sessions=sessions,
        engines=min(engines, sessions),
        store=store,
        replicas=replicas,
        seconds=seconds,
        tokens=history_tokens,
        lease_ttl=lease_ttl,
        refresh=refresh_handles,
    )
    raise typer.Exit(asyncio.run(run_scale(options, json_file=json_file, log_dir=log_dir)))
