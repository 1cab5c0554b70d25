"""Where etcd is, and how this process proves who it is."""

from dataclasses import dataclass, field

from kvplane.client.addresses import normalize_targets
from kvplane.client.channel import Tls


@dataclass(frozen=True, slots=True)
class SettingNames:
    """What whoever runs this process calls what an `EtcdConfig` is made from.

    Messages name what is to be changed by it. By default what the code calls it.
    """

    user: str = "user"
    password: str = "password"  # noqa: S105 - a name
    authorities: str = "tls.root_certificates"
    certificate: str = "tls.certificate_chain"
    key: str = "tls.private_key"

    @property
    def identity(self) -> str:
        """User and password."""
        return f"{self.user}, {self.password}"

    @property
    def pair(self) -> str:
        """This process's certificate, and its key."""
        return f"{self.certificate}, {self.key}"


@dataclass(frozen=True, slots=True)
class EtcdConfig:
    """An etcd, and patience with it.

    Attributes:
        endpoints: Client addresses of its nodes, `host:port`; one or more.
        user: Who this process is to etcd; empty if etcd asks nobody, or knows it by its
            certificate.
        password: Of the user.
        tls: Encryption; None for none. With a key and a certificate of our own it is mutual.
        timeout: Seconds within which a read is answered, with all its attempts.
        try_timeout: Seconds within which a node answers, before another one is asked. A write
            is tried once, so this is all it has.
        silence: Seconds without a sign of life after which a stream counts as broken.
        names: What messages call the settings above.

    Raises:
        ValueError: An endpoint is no address, a duration not positive, or the password has no
            user. The message says what to do.

    """

    endpoints: tuple[str, ...]
    user: str = ""
    password: str = field(default="", repr=False)
    tls: Tls | None = field(default=None, repr=False)
    timeout: float = 6.0
    try_timeout: float = 2.0
    silence: float = 6.0
    names: SettingNames = SettingNames()

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise ValueError("etcd needs at least one endpoint, host:port")
        object.__setattr__(self, "endpoints", tuple(self.target.split(",")))
        if self.password and not self.user:
            raise ValueError(
                f"etcd's password is given without a user: name the user too ({self.names.user})"
            )
        if not 0 < self.try_timeout <= self.timeout or self.silence <= 0:
            raise ValueError("etcd's durations are positive, and one try is within the timeout")

    @property
    def target(self) -> str:
        """All endpoints, separated by commas, in their usual form."""
        return normalize_targets(",".join(self.endpoints))
