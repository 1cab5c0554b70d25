"""`kvplane gateway`: the OpenAI-compatible gateway in a process of its own."""

from typing import Annotated

import typer

from kvplane_services.cli.processes import run_process
from kvplane_services.cli.serve import (
    ConfigOption,
    HttpOption,
    LogFormatOption,
    LogLevelOption,
    StopDelayOption,
)

RouterOption = Annotated[
    str | None,
    typer.Option(
        "--router",
        metavar="HOST:PORT,...",
        help="gRPC addresses of `kvplane router` or `kvplane up`. [default: 127.0.0.1:7002]",
    ),
]
ResponseHeadersOption = Annotated[
    bool | None,
    typer.Option(
        "--response-headers/--no-response-headers",
        help="Whether answers carry x-kvplane-* headers about the decision. [default: no]",
    ),
]
StrategyHeaderOption = Annotated[
    bool | None,
    typer.Option(
        "--allow-strategy-header/--no-allow-strategy-header",
        help="Whether clients may force local, pull or recompute with the request header "
        "x-kvplane-strategy. [default: no]",
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(gateway)


def gateway(
    *,
    router: RouterOption = None,
    http: HttpOption = None,
    response_headers: ResponseHeadersOption = None,
    allow_strategy_header: StrategyHeaderOption = None,
    stop_delay: StopDelayOption = None,
    config: ConfigOption = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> None:
    """Run an OpenAI-compatible gateway, which asks a router where each turn goes.

    Serves /v1/chat/completions, /v1/completions and /v1/models, and /health, /readyz and
    /metrics for operators. Run as many as you like behind any load balancer: they keep nothing.
    Limits and timeouts are settings; `kvplane config schema gateway` lists them.

    On SIGTERM /readyz turns first; turns are still taken for --stop-delay seconds, and those that
    run then get gateway.shutdown_grace seconds more. Ctrl-C skips the delay.
    """
    from kvplane_services.main.gateway import run_gateway
    from kvplane_services.settings import GatewaySettings

    run_process(
        GatewaySettings,
        run_gateway,
        config=config,
        flags={
            "peers": {"router": router},
            "gateway": {
                "http": http,
                "response_headers": response_headers,
                "allow_strategy_header": allow_strategy_header,
            },
            "stop": {"delay": stop_delay},
            "log": {"level": log_level, "format": log_format},
        },
    )
