"""What `kvplane bench scale` is to measure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScaleOptions:
    """What to measure.

    Attributes:
        sessions: Sessions, each with a lease.
        engines: Decode engines that hold them.
        store: "memory", "etcd" for one that is started here, or `etcd://...`.
        replicas: Processes of the plane.
        seconds: How long renewals and the watch are measured, each.
        tokens: Tokens of each session's history.
        lease_ttl: TTL of the leases, seconds; each is renewed every third of it.
        refresh: Whether handles say an expiry, and are reported again with each renewal.

    """

    sessions: int
    engines: int
    store: str = "etcd"
    replicas: int = 1
    seconds: float = 10.0
    tokens: int = 2048
    lease_ttl: float = 30.0
    refresh: bool = False
