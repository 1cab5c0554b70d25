"""Addresses of the form `host:port`, and lists of them for a plane of several replicas."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Self

_ADDRESS = re.compile(r"(?:\[(?P<v6>[^\[\]]+)\]|(?P<host>[^\[\]:/\s]+)):(?P<port>[0-9]{1,9})")
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class Address:
    """A host, without brackets, and a TCP port; a listener on port 0 takes a free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """The address in `host:port`; IPv6 literals stand in brackets.

        Raises:
            ValueError: It is not one; the message says why, and leaves `text` to the caller.

        """
        match = _ADDRESS.fullmatch(text)
        if match is None:
            raise ValueError("expected host:port, for example 127.0.0.1:7000 or [::1]:7000")
        if int(match["port"]) > _MAX_PORT:
            raise ValueError(f"the port is {match['port']}, the largest there is {_MAX_PORT}")
        if match["v6"] is not None:
            ipaddress.IPv6Address(match["v6"])
        return cls(host=match["v6"] or match["host"], port=int(match["port"]))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def normalize_target(target: str) -> str:
    """Checks the `host:port` of another process.

    Raises:
        ValueError: It is not one; the message says what is expected.

    """
    try:
        address = Address.parse(target)
    except ValueError as error:
        raise ValueError(f"{target!r} is not an address: {error}") from error
    if not address.port:
        raise ValueError(f"{target!r} has port 0: name the port that the other process listens on")
    return str(address)


def parse_targets(targets: str) -> tuple[str, ...]:
    """The addresses of a plane's replicas in `host:port,host:port`, each once.

    Raises:
        ValueError: One is no address, or there is none; the message says what is expected.

    """
    return tuple(dict.fromkeys(normalize_target(one.strip()) for one in targets.split(",")))


def normalize_targets(targets: str) -> str:
    """Checks one or more `host:port`, separated by commas. Raises ValueError."""
    return ",".join(parse_targets(targets))
