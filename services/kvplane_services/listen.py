"""Addresses that servers listen on."""

import ipaddress
from typing import Self

from kvplane.client.addresses import Address
from kvplane_services.errors import InvalidRequest


class ListenAddress(Address):
    """An address of this machine; port 0 takes a free one."""

    @classmethod
    def parse(cls, text: str, *, field: str = "address") -> Self:
        """The address in `host:port`; IPv6 literals stand in brackets.

        Raises:
            InvalidRequest: It is not one.

        """
        try:
            return super().parse(text)
        except ValueError as error:
            raise InvalidRequest(
                f"{text!r} is not an address to listen on: {error}", field=field
            ) from error

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
