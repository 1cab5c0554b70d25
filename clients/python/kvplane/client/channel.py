"""Channels to the plane: one place for encryption, keepalive and reconnecting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvplane.client.addresses import normalize_target

if TYPE_CHECKING:
    import grpc.aio

# A name with several addresses is a plane of several replicas: its clients spread over them.
_SERVICE_CONFIG = '{"loadBalancingConfig": [{"pick_first": {"shuffleAddressList": true}}]}'

# Names and values are gRPC's. Pings while a call is open find a peer that vanished without a
# word, or is frozen, within 3.5 s: before calls and heartbeats give up their waiting, so that
# they are in time to go elsewhere. (gRPC waits for the answer to a ping for ping_timeout, a
# minute by default, whatever keepalive_timeout says.) A connection must stand within a second,
# and reconnecting is quick, because the plane is near; no proxy, because environments that set
# one for the web rarely mean it for their cluster; no limit on answers, which a list of leases
# with their handles can make large.
_OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.keepalive_time_ms", 1_500),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.http2.ping_timeout_ms", 2_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 3_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.service_config", _SERVICE_CONFIG),
)


@dataclass(frozen=True, slots=True)
class Tls:
    """Encryption of a channel; all fields are PEM.

    Attributes:
        root_certificates: Authorities to trust; None for the system's.
        private_key: Key of the client's certificate, for mutual TLS.
        certificate_chain: The client's certificate, for mutual TLS.

    """

    root_certificates: bytes | None = None
    private_key: bytes | None = None
    certificate_chain: bytes | None = None


def open_channel(target: str, *, tls: Tls | None = None) -> grpc.aio.Channel:
    """Opens a channel to `host:port`. Connects at the first call, and again when cut.

    Raises:
        ValueError: `target` is not an address.

    """
    # Engines load this package long before they talk to a plane.
    import grpc.aio  # noqa: PLC0415 - see above

    address = normalize_target(target)
    if tls is None:
        return grpc.aio.insecure_channel(address, options=_OPTIONS)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=tls.root_certificates,
        private_key=tls.private_key,
        certificate_chain=tls.certificate_chain,
    )
    return grpc.aio.secure_channel(address, credentials, options=_OPTIONS)
