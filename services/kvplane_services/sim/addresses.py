"""Under which name a listener is found."""

from kvplane_services.listen import ListenAddress

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, never bound


def reachable(host: str) -> str:
    """Under which address a listener is found from this machine; wildcards name no place."""
    return _WILDCARDS.get(host, host)


def base_url(host: str, port: int) -> str:
    """The URL of a listener."""
    return f"http://{ListenAddress(reachable(host), port)}"
