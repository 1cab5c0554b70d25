"""The gRPC and HTTP servers of a process, from its settings."""

import importlib
import logging
import socket
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from kvplane_services.clock import Clock
from kvplane_services.errors import InvalidRequest
from kvplane_services.grpc_server import GrpcServer, GrpcServerConfig
from kvplane_services.listen import ListenAddress
from kvplane_services.main.lease_tallies import Tally
from kvplane_services.main.process import Stop, background, say
from kvplane_services.main.store_gauges import Gauge
from kvplane_services.router.ports import Router
from kvplane_services.settings_sections import GatewaySection, GrpcSection

_log = logging.getLogger(__name__)


def grpc_server(section: GrpcSection) -> GrpcServer:
    """The gRPC server, not yet listening.

    Raises:
        InvalidRequest: The certificate or its key is missing or unreadable.

    """
    return GrpcServer(
        config=GrpcServerConfig(address=section.address, stop_grace=section.stop_grace),
        credentials=_credentials(section),
    )


@asynccontextmanager
async def serving_grpc(
    server: GrpcServer, section: GrpcSection, *, stop: Stop
) -> AsyncGenerator[None]:
    """Serves inside of the block, and says where. Raises OSError if the address is taken.

    Once a stop is asked for the health service says that it does not serve.
    """

    async def announce() -> None:
        await stop.asked.wait()
        await server.announce_stop()

    address = ListenAddress.parse(section.address)
    secure = section.tls_cert is not None
    if not address.is_loopback:
        _log.warning(
            "gRPC on %s is open to whoever reaches it: there is no authentication%s",
            address,
            "" if secure else " and no encryption (set grpc.tls_cert and grpc.tls_key)",
        )
    _refuse_taken(address)
    port = await server.start()
    try:
        say(f"gRPC ready on {ListenAddress(address.host, port)}")
        async with background(announce()):
            yield
    finally:
        await server.stop()


def load_gateway() -> None:
    """Loads the gateway's libraries, which holds up whatever is served already.

    Raises:
        ModuleNotFoundError: They are not installed.

    """
    importlib.import_module("kvplane_services.gateway.app")
    importlib.import_module("kvplane_services.gateway.server")


@asynccontextmanager
async def serving_gateway(
    section: GatewaySection,
    *,
    router: Router,
    clock: Clock,
    stop: Stop,
    gauges: Sequence[Gauge] = (),
    tallies: Sequence[Tally] = (),
) -> AsyncGenerator[None]:
    """Serves the OpenAI-compatible gateway inside of the block, and says where.

    Once a stop is asked for /readyz says so. /metrics show gauges and tallies besides its own.

    Raises:
        OSError: The address is taken.

    """
    # The gateway's libraries are an extra; only processes that have it need them.
    from kvplane_services.gateway.app import (  # noqa: PLC0415 - see above
        READINESS,
        build_gateway,
    )
    from kvplane_services.gateway.config import GatewayConfig  # noqa: PLC0415 - see above
    from kvplane_services.gateway.server import listening  # noqa: PLC0415 - see above
    from kvplane_services.telemetry import Telemetry, otlp_exporter  # noqa: PLC0415 - see above

    values = section.model_dump(exclude={"http", "tenant_secret"})
    config = GatewayConfig(**values, tenant_secret=section.tenant_secret.get_secret_value())
    address = ListenAddress.parse(section.http)
    if not address.is_loopback:
        _log.warning(
            "HTTP on %s is open to whoever reaches it: there is no authentication and no "
            "encryption; put a proxy in front that has both",
            address,
        )
    exporter = otlp_exporter(config.otlp_endpoint) if config.otlp_endpoint else None
    telemetry = Telemetry(service_name="kvplane-gateway", span_exporter=exporter)
    for gauge in gauges:
        telemetry.observed(gauge.name, gauge.description, gauge.read)
    for tally in tallies:
        telemetry.tallied(tally.name, tally.description, tally.label, tally.read)
    app = build_gateway(router=router, settings=config, clock=clock, telemetry=telemetry)
    _refuse_taken(address)

    async def announce() -> None:
        await stop.asked.wait()
        app[READINESS].stop()

    try:
        async with listening(
            app,
            host=address.host,
            port=address.port,
            shutdown_grace=config.shutdown_grace,
        ) as (host, port):
            say(f"HTTP ready on http://{ListenAddress(host, port)}")
            async with background(announce()):
                yield
    finally:
        telemetry.close()


def _refuse_taken(address: ListenAddress) -> None:
    """Raises OSError in words of ours; gRPC's library writes a line of its own otherwise."""
    if address.port == 0:
        return
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, where = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        raise OSError(f"cannot listen on {address}: {error.strerror or error}") from error


def _credentials(section: GrpcSection) -> grpc.ServerCredentials | None:
    if section.tls_cert is None and section.tls_key is None:
        return None
    if section.tls_cert is None or section.tls_key is None:
        raise InvalidRequest(
            "encryption needs both grpc.tls_cert and grpc.tls_key", field="grpc.tls_cert"
        )
    pair = (
        read_pem(section.tls_key, setting="grpc.tls_key"),
        read_pem(section.tls_cert, setting="grpc.tls_cert"),
    )
    try:
        # gRPC's library says nothing of use about a certificate that it cannot take.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(section.tls_cert, section.tls_key)
    except ssl.SSLError as error:
        raise InvalidRequest(
            f"{section.tls_cert} and {section.tls_key} are no certificate with its private key, "
            f"both in PEM: {error.reason or error}",
            field="grpc.tls_cert",
        ) from error
    return grpc.ssl_server_credentials([pair])


def read_pem(file: Path, *, setting: str) -> bytes:
    """The certificate or key that a setting names. Raises InvalidRequest."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidRequest(
            f"{setting}: {file} cannot be read: {error.strerror}", field=setting
        ) from error
