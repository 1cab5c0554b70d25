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
    group.command("retention")(retention)
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


def retention(
    *,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A trace of the Mooncake project's form. [default: a synthetic one]",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the synthetic trace.")] = 1,
    capacity: Annotated[
        str, typer.Option(help="Percents of what keeping everything takes, separated by commas.")
    ] = "1,2,5,10,20",
    keep_all_tokens: Annotated[
        int, typer.Option(min=0, help="What keeping everything takes; 0: what the trace says.")
    ] = 0,
    hints: Annotated[
        float, typer.Option(min=0, max=1, help="Part of the conversations whose client hints.")
    ] = 0.5,
    wrong_hints: Annotated[
        float, typer.Option(min=0, max=1, help="Part of those hints that end what goes on.")
    ] = 0.0,
    budget: Annotated[
        float, typer.Option(min=0, max=1, help="Part of the memory that retentions may take.")
    ] = 1.0,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json", metavar="FILE", dir_okay=False, writable=True, help="Write figures there."
        ),
    ] = None,
) -> None:
    """Simulate what engines keep under a trace, by the plane's policy and by others.

    Four decode engines whose memory requests and retentions share, 20 ms a token. Prints, for each
    rule and capacity, how much of the recomputing that keeping everything would save is saved, the
    same beside a prefill-side prefix cache as large as all engines, and whether anybody waited.

    kvplane bench retention --trace conversation_trace.jsonl --json retention.json
    """
    from kvplane_services.bench.retention.command import run_retention
    from kvplane_services.bench.retention.study import StudyOptions

    try:
        capacities = [float(percent) for percent in capacity.split(",")]
    except ValueError:
        capacities = []
    if not capacities or not all(0 < percent <= 1000 for percent in capacities):  # noqa: PLR2004
        raise typer.BadParameter("expected percents such as 1,2,5", param_hint="--capacity")
    options = StudyOptions(
        capacities=capacities,
        keep_all=keep_all_tokens,
        hints=hints,
        wrong=wrong_hints,
        budget=budget,
    )
    raise typer.Exit(run_retention(options, trace=trace, seed=seed, json_file=json_file))
