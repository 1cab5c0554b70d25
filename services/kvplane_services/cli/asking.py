"""What the commands that ask a running plane have in common: their options, and the call."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from kvplane_services.cli.durations import parse_duration
from kvplane_services.cli.output import Output

if TYPE_CHECKING:
    from kvplane.client import Plane

T = TypeVar("T")

DEFAULT_PLANE = "127.0.0.1:7000"


def _address(text: str) -> str:
    from kvplane.client.addresses import normalize_targets

    try:
        return normalize_targets(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


PlaneOption = Annotated[
    str,
    typer.Option(
        "--plane",
        metavar="HOST:PORT,...",
        envvar="KVPLANE_PLANE",
        parser=_address,
        help="Where the plane listens for gRPC; all its replicas, if it has several.",
    ),
]
LeasesOption = Annotated[
    str | None,
    typer.Option(
        "--leases",
        metavar="HOST:PORT,...",
        parser=_address,
        help="Where `kvplane leases` runs as a process of its own; overrides --plane.",
    ),
]
RegistryOption = Annotated[
    str | None,
    typer.Option(
        "--registry",
        metavar="HOST:PORT,...",
        parser=_address,
        help="Where `kvplane registry` runs as a process of its own; overrides --plane.",
    ),
]
RouterOption = Annotated[
    str | None,
    typer.Option(
        "--router",
        metavar="HOST:PORT,...",
        parser=_address,
        help="Where `kvplane router` runs as a process of its own; overrides --plane.",
    ),
]
TlsCaOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        envvar="KVPLANE_TLS_CA",
        exists=True,
        dir_okay=False,
        help="Certificates to trust, in PEM, for a plane that serves with --tls-cert.",
    ),
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="How to answer.")]
SpanOption = Annotated[
    float | None,
    typer.Option(
        "--for",
        metavar="DURATION",
        parser=_duration,
        help="How long, for example 90s, 5m or 2h; the plane's default if left out.",
    ),
]


# What each process of a plane can be asked about, by the option that names it.
_SERVES = {
    "leases": "engines and leases",
    "registry": "sessions",
    "router": "decisions",
}


def ask(
    work: Callable[["Plane"], Awaitable[T]],
    *,
    plane: str,
    tls_ca: Path | None = None,
    **processes: str | None,
) -> T:
    """Runs calls against the plane at these addresses.

    Args:
        work: The calls.
        plane: Address of all services.
        tls_ca: Certificates to trust.
        processes: Address of `leases`, `registry` or `router` where it is another, or None; the
            first is the one that the calls are about.

    Raises:
        KvplaneClientError: A call failed.

    """
    from kvplane.client import KvplaneClientError, Plane, Tls

    tls = None if tls_ca is None else Tls(root_certificates=tls_ca.read_bytes())

    async def asking() -> T:
        async with Plane(
            plane,
            leases=processes.get("leases"),
            registry=processes.get("registry"),
            router=processes.get("router"),
            tls=tls,
        ) as target:
            return await work(target)

    try:
        return asyncio.run(asking())
    except KvplaneClientError as error:
        process = next(iter(processes), None)
        if error.code != "UNIMPLEMENTED" or process is None:
            raise
        raise KvplaneClientError(
            f"the process at {processes[process] or plane} is not the one to ask about "
            f"{_SERVES[process]}: name `kvplane {process}` with --{process} HOST:PORT, or a "
            "`kvplane up` with --plane",
            code=error.code,
        ) from error
