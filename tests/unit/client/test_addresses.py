"""Addresses of the plane."""

import pytest

from kvplane.client.addresses import normalize_target


@pytest.mark.parametrize("target", ["127.0.0.1:7000", "[::1]:7000", "plane.example:1", "a-b:65535"])
def test_addresses_are_accepted(target: str) -> None:
    """Host names, IPv4 addresses and bracketed IPv6 literals with a port are addresses."""
    assert normalize_target(target) == target


@pytest.mark.parametrize(
    "target",
    [
        "",
        "7000",
        "host",
        "host:",
        ":7000",
        "::1:7000",
        "[::1]",
        "[::g]:1",
        "host:0",
        "host:65536",
        "http://host:7000",
        "host:7000/",
        "ho st:1",
        "host:\uff17",
    ],
)
def test_what_is_no_address_is_refused(target: str) -> None:
    """Anything else raises a ValueError that repeats what was given."""
    with pytest.raises(ValueError) as caught:
        normalize_target(target)
    assert repr(target) in str(caught.value)
