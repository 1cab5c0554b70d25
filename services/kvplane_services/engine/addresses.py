"""Which addresses of engines others can reach. Pure."""

import ipaddress
from urllib.parse import urlsplit

from kvplane_services.errors import InvalidRequest

_WILDCARDS = ("", "*")
_MAX_PORT = 65535


def check_endpoint(endpoint: str, *, field: str = "engine.endpoint") -> str:
    """The base URL of an engine, without a trailing slash.

    Raises:
        InvalidRequest: It is no URL that gateways on other machines could use.

    """
    # urlsplit drops some of them and takes others for a part of the name.
    if _has_blanks(endpoint):
        raise InvalidRequest(
            f"{field} {endpoint!r}: write it without blanks, as in http://host:port", field=field
        )
    try:
        parts = urlsplit(endpoint)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        hint = "; put IPv6 addresses in brackets, as in http://[2001:db8::1]:8000"
        raise InvalidRequest(
            f"{field} {endpoint!r} is no URL: {error}{hint}", field=field
        ) from None
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidRequest(
            f"{field} {endpoint!r} is no base URL: expected http://host:port", field=field
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InvalidRequest(
            f"{field} must be a plain base URL such as http://host:port, without user, query "
            "or fragment",
            field=field,
        )
    # urlsplit takes the text after the last colon of an address without brackets for a port.
    if "[" not in parts.netloc and parts.netloc.count(":") > 1:
        raise InvalidRequest(
            f"{field} {endpoint!r} has an IPv6 address without brackets: write it as "
            "http://[2001:db8::1]:8000",
            field=field,
        )
    _refuse_wildcard(host, field)
    return endpoint.rstrip("/")


def check_host(host: str, *, field: str = "engine.nixl.host") -> None:
    """Checks a host name or address that stands alone, without brackets.

    Raises:
        InvalidRequest: Other engines could not reach it.

    """
    if host.strip() and _has_blanks(host):
        raise InvalidRequest(f"{field} {host!r}: write it without blanks", field=field)
    if host.startswith("[") or host.endswith("]"):
        raise InvalidRequest(f"{field} {host!r}: write the address without brackets", field=field)
    _refuse_wildcard(host, field)
    if ":" in host and not _is_address(host):
        raise InvalidRequest(
            f"{field} {host!r} is neither a host name nor an address: the port goes into its "
            "own field",
            field=field,
        )


def check_side_channel(host: str, endpoint: str, *, field: str = "engine.nixl.host") -> None:
    """Checks that a side channel is where an engine's endpoint says that the engine is.

    Raises:
        InvalidRequest: Its host is loopback and the endpoint's is not: other engines would look
            for it on their own machine.

    """
    served = urlsplit(endpoint).hostname or ""
    if _is_loopback(host) and not _is_loopback(served):
        raise InvalidRequest(
            f"{field} {host!r} is loopback, but the engine serves on {served!r}: other engines "
            "would look for its side channel on their own machine. Set "
            "VLLM_NIXL_SIDE_CHANNEL_HOST on the engine to an address that they can reach",
            field=field,
        )


def check_port(port: int, *, field: str = "engine.nixl.port") -> None:
    """Checks a TCP port.

    Raises:
        InvalidRequest: It is not within 1 to 65535.

    """
    if not 1 <= port <= _MAX_PORT:
        raise InvalidRequest(f"{field} is {port}: expected 1 to {_MAX_PORT}", field=field)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    if _is_address(host):
        return ipaddress.ip_address(host).is_loopback
    name = host.rstrip(".").lower()
    return name == "localhost" or name.endswith(".localhost")


def _has_blanks(text: str) -> bool:
    return any(character.isspace() or not character.isprintable() for character in text)


def _refuse_wildcard(host: str, field: str) -> None:
    unspecified = _is_address(host) and ipaddress.ip_address(host).is_unspecified
    if host.strip() in _WILDCARDS or unspecified:
        raise InvalidRequest(
            f"{field}: {host!r} is not an address that others can reach: name the host or the "
            "interface that the other machines use",
            field=field,
        )
