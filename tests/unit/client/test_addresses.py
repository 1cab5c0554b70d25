"""Addresses of the plane."""

import pytest

from kvplane.client.addresses import normalize_target, normalize_targets, parse_targets


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


def test_port_out_of_range_is_said() -> None:
    """A port beyond the largest is named, instead of asking for the form that it has."""
    with pytest.raises(ValueError, match="the port is 70000, the largest there is 65535"):
        normalize_target("127.0.0.1:70000")


def test_replicas_are_separated_by_commas() -> None:
    """A plane of several replicas is named by all their addresses, each once."""
    assert parse_targets("a:1, b:2,[::1]:3,a:1") == ("a:1", "b:2", "[::1]:3")
    assert normalize_targets("a:1, b:2") == "a:1,b:2"


@pytest.mark.parametrize("targets", ["", "a:1,", ",a:1", "a:1;b:2", "a:1 b:2", "a:1,b"])
def test_list_with_what_is_no_address_is_refused(targets: str) -> None:
    """One wrong address in a list is enough."""
    with pytest.raises(ValueError, match="is not an address"):
        parse_targets(targets)
