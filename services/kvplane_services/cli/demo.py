"""`kvplane demo`: shows on this machine that a streaming conversation reuses its KV."""

import asyncio
import enum
from pathlib import Path
from typing import Annotated

import typer


class EngineKind(enum.Enum):
    """What the demo runs on."""

    VLLM = "vllm"
    SIM = "sim"


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("demo")(demo)


def demo(
    *,
    engine: Annotated[
        EngineKind, typer.Option(help="Real vLLM engines on the CPU, or simulated ones.")
    ] = EngineKind.VLLM,
    engine_python: Annotated[
        Path | None,
        typer.Option(
            help="Python of the environment that has vLLM, NIXL and kvplane; required with "
            "--engine vllm. `make demo` makes one.",
        ),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="FILE",
            dir_okay=False,
            writable=True,
            help="Also write the table there.",
        ),
    ] = None,
    log_dir: Annotated[
        Path | None,
        typer.Option(help="Keep logs there. [default: a temporary folder, kept if it fails]"),
    ] = None,
) -> None:
    """Hold a five-turn streaming chat with and without KV reuse, and compare.

    Starts a plane and two engines, one prefill and one decode, on free loopback ports; talks to
    the gateway with the `openai` client; prints where each turn's tokens came from, as the
    engines count them. Exits with 0 only if reuse happened and every answer is the same. Stops
    everything that it started.
    """
    from kvplane_services.demo.command import run_demo

    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise typer.BadParameter(
            f"{json_file.absolute().parent} is not a folder: make it first", param_hint="--json"
        )
    if engine is EngineKind.VLLM and engine_python is None:
        raise typer.BadParameter(
            "is needed with --engine vllm: the python that has vLLM (or use --engine sim)",
            param_hint="--engine-python",
        )
    raise typer.Exit(
        asyncio.run(run_demo(engine_python=engine_python, json_file=json_file, log_dir=log_dir))
    )
