"""`kvplane engines`: which engines there are, and what an operator does with them."""

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
    enum_text,
    print_fields,
    print_json,
    print_json_list,
    print_table,
    until_text,
)
from kvplane_services.clock import SystemClock
from kvplane_services.engine.model import Role

if TYPE_CHECKING:
    from kvplane.api.engine.v1 import engine_pb2
    from kvplane.client import Plane

EngineArgument = Annotated[
    str, typer.Argument(metavar="ENGINE", help="Its name or id: engines/decode-0 or decode-0.")
]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    engines = typer.Typer(no_args_is_help=True, help="Show and drain the engines of a plane.")
    for command in (list_engines, get, drain, resume, deregister):
        engines.command(command.__name__.removesuffix("_engines"))(command)
    app.add_typer(engines, name="engines")


def list_engines(
    role: Annotated[Role | None, typer.Option(help="Only engines of this role.")] = None,
    model: Annotated[str, typer.Option(help="Only engines that serve this model.")] = "",
    plane: PlaneOption = DEFAULT_PLANE,
    tls_ca: TlsCaOption = None,
    leases: LeasesOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the engines, with their load at the last heartbeat."""
    from kvplane.api.engine.v1 import engine_pb2

    wanted = engine_pb2.Role.Value(f"ROLE_{role.name}") if role else engine_pb2.ROLE_UNSPECIFIED

    async def work(target: "Plane") -> list[engine_pb2.Engine]:
        found = target.engines.list(role=wanted, model=model)
        return [one async for one in found]

    found = ask(work, plane=plane, tls_ca=tls_ca, leases=leases)
    if output is Output.JSON:
        print_json_list("engines", found)
    else:
        print_table(_COLUMNS, map(_row, found), empty="no engines")


def get(
    engine: EngineArgument,
    plane: PlaneOption = DEFAULT_PLANE,
    tls_ca: TlsCaOption = None,
    leases: LeasesOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show one engine."""
    _print(ask(lambda p: p.engines.get(engine), plane=plane, tls_ca=tls_ca, leases=leases), output)


def drain(
    engine: EngineArgument,
    plane: PlaneOption = DEFAULT_PLANE,
    tls_ca: TlsCaOption = None,
    leases: LeasesOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Send an engine no new turns; its leases stay readable until they end."""
    _print(
        ask(lambda p: p.engines.drain(engine), plane=plane, tls_ca=tls_ca, leases=leases), output
    )


def resume(
    engine: EngineArgument,
    plane: PlaneOption = DEFAULT_PLANE,
    tls_ca: TlsCaOption = None,
    leases: LeasesOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Send a draining engine new turns again."""
    _print(
        ask(lambda p: p.engines.resume(engine), plane=plane, tls_ca=tls_ca, leases=leases), output
    )


def deregister(
    engine: EngineArgument,
    epoch: Annotated[
        int | None,
        typer.Option(help="Only this registration; the current one if left out."),
    ] = None,
    plane: PlaneOption = DEFAULT_PLANE,
    tls_ca: TlsCaOption = None,
    leases: LeasesOption = None,
) -> None:
    """Forget an engine and end its leases. An engine that still runs registers again."""

    async def work(target: "Plane") -> None:
        current = epoch if epoch is not None else (await target.engines.get(engine)).epoch
        await target.engines.deregister(engine, epoch=current)

    ask(work, plane=plane, tls_ca=tls_ca, leases=leases)
    print(f"deregistered {engine}")


_COLUMNS = (
    "NAME",
    "ROLE",
    "STATE",
    "MODELS",
    "ENDPOINT",
    "CONNECTOR",
    "RUNNING",
    "WAITING",
    "KV USED",
    "KV RETAINED",
    "RETENTIONS",
    "BUDGET",
    "REPLICA",
)


def _row(engine: "engine_pb2.Engine") -> tuple[str, ...]:
    from kvplane.api.engine.v1 import engine_pb2

    return (
        engine.name,
        enum_text(engine_pb2.Role, engine.role),
        enum_text(engine_pb2.Engine.State, engine.state),
        ", ".join(engine.models),
        engine.endpoint,
        enum_text(engine_pb2.EngineBuild.Connector, engine.build.connector),
        str(engine.load.running_requests),
        str(engine.load.waiting_requests),
        _share(engine.load.used_blocks, engine.layout.total_blocks),
        _share(engine.load.retained_blocks, engine.layout.total_blocks),
        str(engine.load.retentions),
        f"{engine.retention_budget:.0%}" if engine.HasField("retention_budget") else "",
        engine.replica,
    )


def _share(blocks: int, total: int) -> str:
    return f"{blocks}/{total} ({blocks / total:.1%})" if total else str(blocks)


def _print(engine: "engine_pb2.Engine", output: Output) -> None:
    if output is Output.JSON:
        print_json(engine)
        return
    build, layout, nixl = engine.build, engine.layout, engine.nixl
    fields = [(column.lower(), value) for column, value in zip(_COLUMNS, _row(engine), strict=True)]
    fields += [
        ("epoch", str(engine.epoch)),
        ("vllm", build.vllm_version),
        ("connector version", build.connector_version),
        ("nixl", f"{nixl.host}:{nixl.port} ({nixl.engine_id})" if nixl.port else ""),
        ("block size", f"{layout.block_size} tokens" if layout.block_size else ""),
        ("labels", ", ".join(f"{key}={value}" for key, value in sorted(engine.labels.items()))),
        ("registered", until_text(engine.create_time, clock=SystemClock())),
        ("lapses", until_text(engine.expire_time, clock=SystemClock())),
    ]
    print_fields(fields)
