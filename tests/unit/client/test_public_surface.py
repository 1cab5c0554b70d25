"""What `kvplane.client` offers."""

from typing import Any

from kvplane import client


def test_all_names_exist_and_are_declared_once() -> None:
    """Every name in `__all__` loads, and nothing that loads is missing from it."""
    assert sorted(client.__all__) == sorted(client._HOME_OF)
    assert len(set(client.__all__)) == len(client.__all__)
    for name in client.__all__:
        value: Any = getattr(client, name)
        home = getattr(value, "__module__", None)
        if name not in {"Directive", "WatchEvent"}:  # Unions have no home.
            assert home == f"kvplane.client.{client._HOME_OF[name]}"


def test_unknown_names_raise() -> None:
    """A name that is not public is an AttributeError, as in any module."""
    assert not hasattr(client, "NoSuchThing")
