"""`kvplane sim-engine`: a simulated engine, for trying policies and for tests."""

from typing import Annotated

import typer

from kvplane_services.cli.processes import run_process
from kvplane_services.cli.serve import ConfigOption, LogFormatOption, LogLevelOption
from kvplane_services.engine.model import Role


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("sim-engine")(sim_engine)


def sim_engine(
    *,
    role: Annotated[Role | None, typer.Option(help="What it serves. [default: both]")] = None,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where its OpenAI-compatible server listens; port 0 takes a free one. "
            "[default: 127.0.0.1:8100]",
        ),
    ] = None,
    plane: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT,...",
            help="gRPC addresses of the plane to register at. [default: none]",
        ),
    ] = None,
    engine_id: Annotated[
        str | None, typer.Option(help="Name at the plane. [default: sim-ROLE-PORT]")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Served model name. [default: kvplane-tiny]")
    ] = None,
    side_channel: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where other simulated engines read its blocks, without authentication. "
            "[default: a free port of 127.0.0.1]",
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Base URL that gateways reach it under. [default: that of --http]"
        ),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A label; repeatable.")
    ] = None,
    stock: Annotated[
        bool | None,
        typer.Option(
            "--stock",
            help="Behave as vLLM's own NixlConnector (fixed TTL of 480 s, a read consumes, no "
            "proofs) and do not register: name it to the plane with `kvplane up --engine`.",
        ),
    ] = None,
    blocks: Annotated[int | None, typer.Option(help="KV blocks. [default: 16384]")] = None,
    block_size: Annotated[
        int | None, typer.Option(help="Tokens per KV block. [default: 16]")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="Longest prompt plus answer, tokens. [default: 131072]")
    ] = None,
    prefix_caching: Annotated[
        bool | None,
        typer.Option(
            "--prefix-caching/--no-prefix-caching",
            help="Find blocks again by their tokens. [default: on]",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Engines with one seed run the same model. [default: 0]")
    ] = None,
    prefill_tokens_per_s: Annotated[
        float | None, typer.Option(help="Prompt tokens computed per second. [default: 7500]")
    ] = None,
    decode_ms_per_token: Annotated[
        float | None, typer.Option(help="Milliseconds of a decode step. [default: 20]")
    ] = None,
    transfer_ms: Annotated[
        float | None, typer.Option(help="Fixed part of a transfer, milliseconds. [default: 2]")
    ] = None,
    transfer_us_per_descriptor: Annotated[
        float | None, typer.Option(help="Microseconds to post one descriptor. [default: 4.4]")
    ] = None,
    descriptors_per_block: Annotated[
        int | None,
        typer.Option(help="Descriptors per KV block: layers times regions. [default: 128]"),
    ] = None,
    transfer_tokens_per_s: Annotated[
        float | None,
        typer.Option(help="Tokens whose KV the link carries per second. [default: 1000000]"),
    ] = None,
    retention_ttl: Annotated[
        float | None,
        typer.Option(help="Seconds that it retains without word from a plane. [default: 30]"),
    ] = None,
    staged_ttl: Annotated[
        float | None,
        typer.Option(
            help="Seconds that prefill keeps blocks for the decode leg, vLLM's kv_lease_duration; "
            "reads begin until 5 s before. [default: 30]"
        ),
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND[:NAME=NUMBER,...]",
            help="A fault from the start, for example stall:at_byte=100,seconds=2,count=1; "
            "repeatable. --list-faults shows them all.",
        ),
    ] = None,
    list_faults: Annotated[
        bool, typer.Option("--list-faults", help="Show the faults there are, and exit.")
    ] = False,
    config: ConfigOption = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> None:
    """Run a simulated engine: vLLM's HTTP surface and kvplane's connector, without a model.

    It keeps account of KV blocks as vLLM does, takes as long as it is told to, and answers
    deterministically: a wrong block read shows as a wrong answer. The default speed is that of
    a 32B model on one H200. A pair on this machine, registered at `kvplane up`:

    kvplane sim-engine --role prefill --http 127.0.0.1:8100 --plane 127.0.0.1:7000

    kvplane sim-engine --role decode --http 127.0.0.1:8200 --plane 127.0.0.1:7000

    Faults can be set while it runs, from the same machine; an empty list takes them back:

    curl 127.0.0.1:8100/sim/faults --json '{"faults": [{"kind": "freeze"}]}'
    """
    if list_faults:
        _print_faults()
        return
    from kvplane_services.main.sim_engine import run_sim_engine
    from kvplane_services.settings import SimEngineSettings

    run_process(
        SimEngineSettings,
        run_sim_engine,
        config=config,
        flags={
            "sim": {
                "role": role.value if role else None,
                "http": http,
                "plane": plane,
                "engine_id": engine_id,
                "model": model,
                "side_channel": side_channel,
                "advertise": advertise,
                "labels": _labels(label) if label else None,
                "stock": stock,
                "blocks": blocks,
                "block_size": block_size,
                "max_model_len": max_model_len,
                "prefix_caching": prefix_caching,
                "seed": seed,
                "prefill_tokens_per_s": prefill_tokens_per_s,
                "decode_ms_per_token": decode_ms_per_token,
                "transfer_ms": transfer_ms,
                "transfer_us_per_descriptor": transfer_us_per_descriptor,
                "descriptors_per_block": descriptors_per_block,
                "transfer_tokens_per_s": transfer_tokens_per_s,
                "retention_ttl": retention_ttl,
                "staged_ttl": staged_ttl,
                "faults": fault,
            },
            "log": {"level": log_level, "format": log_format},
        },
    )


def _labels(pairs: list[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--label")
        labels[name] = value
    return labels


def _print_faults() -> None:
    from kvplane_services.sim.faults import DESCRIPTIONS

    for kind, what in DESCRIPTIONS.items():
        typer.echo(f"{kind.value:<11} {what}")
