"""Channels to etcd's nodes."""

import grpc
import grpc.aio

from kvplane.client.channel import Tls

# Names and values are gRPC's. etcd closes connections that are pinged more often than every 5 s,
# or while no call is open: frozen nodes and lost packets show within 9 s, and on streams and in
# calls sooner, which have deadlines of their own. Reconnecting is quick because etcd is near. No
# proxy, because environments that set one for the web rarely mean it for their etcd. No limit on
# answers: a page of large values may be large.
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    # How long the answer to a ping may take, a minute by default, whatever the line above says.
    ("grpc.http2.ping_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)


def open_etcd_channel(target: str, *, tls: Tls | None = None) -> grpc.aio.Channel:
    """Opens a channel to one node. It connects at the first call, and again when cut."""
    if tls is None:
        return grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=tls.root_certificates,
        private_key=tls.private_key,
        certificate_chain=tls.certificate_chain,
    )
    return grpc.aio.secure_channel(target, credentials, options=CHANNEL_OPTIONS)
