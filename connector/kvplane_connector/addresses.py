"""Whether others can reach an engine where it says it is."""

import asyncio
import ipaddress
from urllib.parse import urlsplit

from kvplane.client.clock import Clock

_POLL = 0.1


def side_channel_trouble(host: str, endpoint: str) -> str:
    """What is wrong with the NIXL side channel's address; empty if nothing is.

    Args:
        host: vLLM's VLLM_NIXL_SIDE_CHANNEL_HOST, which handles carry to other engines.
        endpoint: Base URL of the engine's server as the gateway reaches it.

    """
    if _is_wildcard(host) or (_is_loopback(host) and not _is_loopback(_host_of(endpoint))):
        return (
            f"other engines cannot reach the NIXL side channel at {host!r}: set "
            f"VLLM_NIXL_SIDE_CHANNEL_HOST to an address of this host, like {_host_of(endpoint)!r}"
        )
    return ""


async def until_open(endpoint: str, *, patience: float, clock: Clock) -> bool:
    """Waits until something accepts connections at a URL; False if not within `patience`."""
    parts = urlsplit(endpoint)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    deadline = clock.now() + patience
    while True:
        try:
            _, writer = await asyncio.open_connection(parts.hostname, port)
        except OSError:
            if clock.now() >= deadline:
                return False
            await clock.sleep(_POLL)
        else:
            writer.close()
            return True


def _host_of(endpoint: str) -> str:
    return urlsplit(endpoint).hostname or ""


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
