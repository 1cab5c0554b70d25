"""`kvplane leases`: which retentions sessions may count on, and until when."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from kvplane_services.cli.asking import (
    DEFAULT_PLANE,
    LeasesOption,
    OutputOption,
    PlaneOption,
    TlsCaOption,
    ask,
)
from kvplane_services.cli.output import (
    Output,
    duration_text,
    enum_text,
    print_fields,
    print_json,
    print_json_line,
    print_json_list,
    print_table,
    until_text,
)
from kvplane_services.clock import SystemClock

if TYPE_CHECKING:
    from kvplane.api.lease.v1 import lease_pb2
    from kvplane.client import Plane

LeaseArgument = Annotated[
    str, typer.Argument(metavar="LEASE", help="Its name or id: leases/ab12 or ab12.")
]
EngineOption = Annotated[str, typer.Option(help="Only leases on this engine, by name or id.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    group = typer.Typer(
        no_args_is_help=True,
        help="Show, watch and release leases, or run the lease manager: `kvplane leases` with "
        "nothing but its options, as in `kvplane leases --grpc 127.0.0.1:7000`; "
        "`kvplane leases serve --help` lists them.",
        short_help="Show leases; alone or with --grpc: run the lease manager.",
    )
    group.command("list")(list_leases)
    group.command()(get)
    group.command()(release)
    group.command()(watch)
    app.add_typer(group, name="leases")


def list_leases(
    engine: EngineOption = "",
    session: Annotated[
        str, typer.Option(help="Only leases of this session, by its resource name.")
    ] = "",
    include_ended: Annotated[
        bool, typer.Option("--all", "-a", help="Ended leases that are still remembered, too.")
    ] = False,
    plane: PlaneOption = DEFAULT_PLANE,
    tls_ca: TlsCaOption = None,
    leases: LeasesOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the leases."""

    async def work(target: "Plane") -> "list[lease_pb2.Lease]":
        found = target.leases.list(engine=engine, session=session, include_ended=include_ended)
        return [one async for one in found]

    found = ask(work, plane=plane, tls_ca=tls_ca, leases=leases)
    if output is Output.JSON:
        print_json_list("leases", found)
    else:
        print_table(_COLUMNS, map(row_of, found), empty="no leases")


def get(
    lease: LeaseArgument,
    plane: PlaneOption = DEFAULT_PLANE,
    tls_ca: TlsCaOption = None,
    leases: LeasesOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show one lease; an ended one says why it ended."""
    found = ask(lambda p: p.leases.get(lease), plane=plane, tls_ca=tls_ca, leases=leases)
    if output is Output.JSON:
        print_json(found)
    else:
        _print(found)


def release(
    lease: LeaseArgument,
    fencing_token: Annotated[
        int | None,
        typer.Option("--token", help="Only the grant with this token; the live one if left out."),
    ] = None,
    plane: PlaneOption = DEFAULT_PLANE,
    tls_ca: TlsCaOption = None,
    leases: LeasesOption = None,
) -> None:
    """End a lease before its time. Releasing a lease that is gone succeeds."""

    async def work(target: "Plane") -> None:
        token = fencing_token
        if token is None:
            token = (await target.leases.get(lease)).fencing_token
        await target.leases.release(lease, fencing_token=token)

    ask(work, plane=plane, tls_ca=tls_ca, leases=leases)
    print(f"released {lease}")


def watch(
    engine: EngineOption = "",
    plane: PlaneOption = DEFAULT_PLANE,
    tls_ca: TlsCaOption = None,
    leases: LeasesOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the leases, then every grant and end, until interrupted."""

    async def work(target: "Plane") -> None:
        # A watch waits for a plane that is away; a first call says that it is.
        await anext(target.leases.list(page_size=1), None)
        async for event in target.leases.watch(engine=engine):
            _print_event(event, output)

    ask(work, plane=plane, tls_ca=tls_ca, leases=leases)


_COLUMNS = (
    "NAME",
    "SESSION",
    "ENGINE",
    "STATE",
    "TOKENS",
    "BLOCKS",
    "READS",
    "TTL",
    "ENDS",
    "CLAIMS",
)


def row_of(lease: "lease_pb2.Lease") -> tuple[str, ...]:
    """What a table says of a lease."""
    return (
        lease.name,
        lease.session,
        lease.engine,
        _state(lease),
        str(lease.tokens),
        str(lease.blocks),
        str(lease.reads),
        duration_text(lease.ttl),
        until_text(lease.expire_time, clock=SystemClock()),
        ", ".join(map(_claim, lease.claims)),
    )


def _state(lease: "lease_pb2.Lease") -> str:
    from kvplane.api.lease.v1 import lease_pb2

    state = enum_text(lease_pb2.Lease.State, lease.state)
    if lease.state == lease_pb2.Lease.STATE_ENDED:
        return f"{state} ({enum_text(lease_pb2.EndReason, lease.end_reason)})"
    if lease.release_reason:
        return f"{state} ({enum_text(lease_pb2.EndReason, lease.release_reason)})"
    return state


def _claim(claim: "lease_pb2.LeaseClaim") -> str:
    # One at another replica says nothing of its time.
    left = f" {duration_text(claim.remaining)}" if claim.HasField("remaining") else ""
    return claim.holder + left


def _print(lease: "lease_pb2.Lease") -> None:
    digests = lease.handle.digests
    fields = [
        (column.lower(), value) for column, value in zip(_COLUMNS, row_of(lease), strict=True)
    ]
    fields += [
        ("fencing token", str(lease.fencing_token)),
        ("engine epoch", str(lease.engine_epoch)),
        ("retention", lease.retention_id),
        ("decision", lease.decision_id),
        ("proof", f"{digests.algorithm} over {digests.tokens} tokens" if digests.tokens else ""),
        ("granted", until_text(lease.create_time, clock=SystemClock())),
    ]
    print_fields(fields)


def _print_event(event: object, output: Output) -> None:
    from kvplane.api.lease.v1 import lease_pb2
    from kvplane.client import Removed, Reset, Synced, Upserted

    match event:
        case Upserted(value=lease_pb2.Lease() as lease, revision=revision):
            message = lease_pb2.WatchLeasesResponse(revision=revision, upserted=lease)
        case Removed(value=lease_pb2.Lease() as lease, revision=revision):
            message = lease_pb2.WatchLeasesResponse(revision=revision, ended=lease)
        case Synced(revision=revision):
            if output is Output.JSON:
                print_json_line(lease_pb2.WatchLeasesResponse(revision=revision, synced=True))
            return
        case Reset():
            print("kvplane: the watch starts over", file=sys.stderr)
            return
        case _:
            return
    if output is Output.JSON:
        print_json_line(message)
    else:
        size = f"{lease.tokens} tokens"
        print(f"{lease.name}  {_state(lease)}  {lease.engine}  {lease.session}  {size}", flush=True)
