"""Addresses that servers listen on."""

import ipaddress
import re
from dataclasses import dataclass

from kvplane_services.errors import InvalidRequest

_ADDRESS = re.compile(r"(?:\[(?P<v6>[^\[\]]+)\]|(?P<host>[^\[\]:/\s]+)):(?P<port>[0-9]{1,5})")
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """A host, without brackets, and a TCP port; port 0 takes a free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, *, field: str = "address") -> "ListenAddress":
        """The address in `host:port`; IPv6 literals stand in brackets.

        Raises:
            InvalidRequest: It is not one.

        """
        match = _ADDRESS.fullmatch(text)
        if match is None or int(match["port"]) > _MAX_PORT:
            raise InvalidRequest(
                f"{text!r} is not an address to listen on: expected host:port, for example "
                "127.0.0.1:8000 or [::1]:8000",
                field=field,
            )
        if match["v6"] is not None:
            try:
                ipaddress.IPv6Address(match["v6"])
            except ValueError as error:
                raise InvalidRequest(f"{text!r}: {error}", field=field) from error
        return cls(host=match["v6"] or match["host"], port=int(match["port"]))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
