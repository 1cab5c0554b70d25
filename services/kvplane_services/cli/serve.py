"""`kvplane up|leases|registry|router`: the processes of the plane; `kvplane config`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplane_services.cli.processes import run_process

if TYPE_CHECKING:
    from kvplane_services.settings import ProcessSettings

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Settings in TOML; `kvplane config schema` lists them all. "
        "[default: what KVPLANE_CONFIG names]",
    ),
]
GrpcOption = Annotated[
    str | None,
    typer.Option(
        "--grpc", metavar="HOST:PORT", help="Where to serve gRPC; port 0 takes a free one."
    ),
]
HttpOption = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="HOST:PORT",
        help="Where to serve the OpenAI API; port 0 takes a free one. [default: 127.0.0.1:8000]",
    ),
]
EngineOption = Annotated[
    list[str] | None,
    typer.Option(
        "--engine",
        metavar="ROLE=URL[,OPTIONS]",
        help="An engine with vLLM's own connector, by role (prefill, decode, both) and base "
        "URL, as in prefill=http://127.0.0.1:8100; repeatable. A decode engine that runs with "
        "bidirectional_kv_xfer is named with its decoder_kv_blocks_ttl: "
        "decode=http://127.0.0.1:8200,keeps=480. ',trust-history' behind that lets turns that "
        "continue a chat read its blocks without proof of their tokens. Engines with kvplane's "
        "connector register themselves.",
    ),
]
LeasesOption = Annotated[
    str | None,
    typer.Option(
        "--leases",
        metavar="HOST:PORT,...",
        help="gRPC addresses of `kvplane leases`. [default: 127.0.0.1:7000]",
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Where state is kept: memory, etcd://HOST:PORT,HOST:PORT or etcd3://HOST:PORT. "
        "The password of etcd's user goes into KVPLANE_STORE__PASSWORD. If etcd is away, the "
        "process waits for 20 s (`store.start_timeout`), then ends with 1. [default: memory]",
    ),
]
TlsCertOption = Annotated[
    Path | None,
    typer.Option("--tls-cert", metavar="FILE", help="Certificate chain for gRPC, in PEM."),
]
TlsKeyOption = Annotated[
    Path | None, typer.Option("--tls-key", metavar="FILE", help="Its private key, in PEM.")
]
StopDelayOption = Annotated[
    float | None,
    typer.Option(
        "--stop-delay",
        metavar="SECONDS",
        min=0,
        help="How long to serve on after SIGTERM while saying not to be ready. [default: 5]",
    ),
]
LogLevelOption = Annotated[
    str | None,
    typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error."),
]
LogFormatOption = Annotated[
    str | None, typer.Option("--log-format", metavar="FORMAT", help="text or json.")
]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(up)
    app.command()(leases)
    app.command()(registry)
    app.command()(router)
    settings = typer.Typer(no_args_is_help=True, help="Show the settings.")
    settings.command()(show)
    settings.command()(schema)
    app.add_typer(settings, name="config")


def up(
    *,
    http: HttpOption = None,
    grpc: GrpcOption = None,
    engine: EngineOption = None,
    store: StoreOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    stop_delay: StopDelayOption = None,
    config: ConfigOption = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> None:
    """Run everything in one process: leases, sessions, router and the OpenAI gateway.

    Point OpenAI clients at the HTTP address, and engines at the gRPC address (by default
    127.0.0.1:7000). On SIGTERM it says that it is not ready and serves on for --stop-delay
    seconds; then, and on Ctrl-C, it finishes turns and calls, and ends.
    """
    from kvplane_services.main.plane import run_plane
    from kvplane_services.settings import PlaneSettings

    run_process(
        PlaneSettings,
        run_plane,
        config=config,
        flags={
            "gateway": {"http": http},
            "grpc": {"address": grpc, "tls_cert": tls_cert, "tls_key": tls_key},
            "engines": engine,
            "stop": {"delay": stop_delay},
            "store": {"url": store},
            "log": {"level": log_level, "format": log_format},
        },
    )


def leases(
    *,
    grpc: GrpcOption = None,
    engine: EngineOption = None,
    store: StoreOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    stop_delay: StopDelayOption = None,
    config: ConfigOption = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> None:
    """Run the lease manager: engines register here, and report what they retain.

    Serves EngineService and LeaseService, by default on 127.0.0.1:7000.
    """
    from kvplane_services.main.leases import run_leases
    from kvplane_services.settings import LeasesSettings

    run_process(
        LeasesSettings,
        run_leases,
        config=config,
        flags={
            "grpc": {"address": grpc, "tls_cert": tls_cert, "tls_key": tls_key},
            "engines": engine,
            "stop": {"delay": stop_delay},
            "store": {"url": store},
            "log": {"level": log_level, "format": log_format},
        },
    )


def registry(
    *,
    grpc: GrpcOption = None,
    leases: LeasesOption = None,
    store: StoreOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    stop_delay: StopDelayOption = None,
    config: ConfigOption = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> None:
    """Run the session registry, which follows the lease manager.

    Serves SessionService, by default on 127.0.0.1:7001.
    """
    from kvplane_services.main.registry import run_registry
    from kvplane_services.settings import RegistrySettings

    run_process(
        RegistrySettings,
        run_registry,
        config=config,
        flags={
            "grpc": {"address": grpc, "tls_cert": tls_cert, "tls_key": tls_key},
            "peers": {"leases": leases},
            "stop": {"delay": stop_delay},
            "store": {"url": store},
            "log": {"level": log_level, "format": log_format},
        },
    )


def router(
    *,
    grpc: GrpcOption = None,
    leases: LeasesOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    stop_delay: StopDelayOption = None,
    config: ConfigOption = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> None:
    """Run a router, which follows the lease manager and decides turns for gateways.

    Serves RouterService, by default on 127.0.0.1:7002. Without the lease manager it goes on
    with what it knows.
    """
    from kvplane_services.main.router import run_router
    from kvplane_services.settings import RouterSettings

    run_process(
        RouterSettings,
        run_router,
        config=config,
        flags={
            "grpc": {"address": grpc, "tls_cert": tls_cert, "tls_key": tls_key},
            "peers": {"leases": leases},
            "stop": {"delay": stop_delay},
            "log": {"level": log_level, "format": log_format},
        },
    )


ProcessArgument = Annotated[
    str, typer.Argument(help="Which process: up, leases, registry, router, gateway or sim-engine.")
]


def show(process: ProcessArgument = "up", config: ConfigOption = None) -> None:
    """Print the settings that a process would run with, from file, environment and defaults."""
    from kvplane_services.settings import load

    typer.echo(load(_kind(process), file=config).model_dump_json(indent=2))


def schema(process: ProcessArgument = "up") -> None:
    """Print every setting with its meaning, unit, bounds and default, as a JSON schema."""
    import json

    typer.echo(json.dumps(_kind(process).model_json_schema(), indent=2))


def _kind(process: str) -> "type[ProcessSettings]":
    from kvplane_services.errors import InvalidRequest
    from kvplane_services.settings import PROCESSES

    if process not in PROCESSES:
        raise InvalidRequest(f"{process} is no process: choose one of {', '.join(PROCESSES)}")
    return PROCESSES[process]
