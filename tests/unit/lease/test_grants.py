from dataclasses import replace
from typing import Any

import pytest

from kvplane_services.errors import InvalidRequest
from kvplane_services.lease.grants import (
    check_report,
    check_retention_id,
    lease_id_for,
    lease_id_of,
)
from kvplane_services.lease.model import DigestChain, Handle
from tests.support.state_values import key_of, retention_of


def test_the_same_retention_gets_the_same_id() -> None:
    """A lease id depends on engine, epoch and retention, and on nothing else."""

    def lease_id(*parts: Any) -> str:
        return lease_id_for(*parts, taken=lambda _: False)

    assert lease_id("d0", 1, "r") == lease_id("d0", 1, "r")
    others = {lease_id("d1", 1, "r"), lease_id("d0", 2, "r"), lease_id("d0", 1, "q")}
    assert len(others | {lease_id("d0", 1, "r")}) == 4


def test_an_id_that_was_used_is_not_used_again() -> None:
    """A retention whose lease ended gets a new id if it is held after all."""
    first = lease_id_for("d0", 1, "r", taken=lambda _: False)

    second = lease_id_for("d0", 1, "r", taken=lambda lease_id: lease_id == first)

    assert first != second


@pytest.mark.parametrize(
    "name", ["", "leases/", "leases/A", "leases/a/b", "lease/a", "a", "leases/" + "a" * 65]
)
def test_names_that_are_none(name: str) -> None:
    """Anything that is no name of a lease has no id."""
    assert lease_id_of(name) is None


def test_names_of_leases() -> None:
    """The id is the last part of the name."""
    assert lease_id_of("leases/0a-b") == "0a-b"


def _nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"0" + b"}" * depth


def test_handles_may_nest() -> None:
    """Engines' own structure is opaque up to a depth that every reader can take apart."""
    check_report(retention_of(handle=Handle(_nested(32))), field="r")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"session_key": replace(key_of(), tenant="")}, "session_key.tenant"),
        ({"session_key": replace(key_of(), session_id="x" * 513)}, "session_key.session_id"),
        ({"decision_id": "x" * 257}, "r.decision_id"),
        ({"message_digest": b"x" * 65}, "r.message_digest"),
        ({"tokens": 0}, "r.tokens"),
        ({"blocks": -1}, "r.blocks"),
        ({"handle": Handle(b"")}, "r.handle.kv_transfer_params"),
        ({"handle": Handle(b"[]")}, "r.handle.kv_transfer_params"),
        ({"handle": Handle(b"\xff")}, "r.handle.kv_transfer_params"),
        ({"handle": Handle(b"[" * 1_000_000)}, "r.handle.kv_transfer_params"),
        ({"handle": Handle(_nested(33))}, "r.handle.kv_transfer_params"),
        ({"handle": Handle(b"{}", DigestChain("a", 0, 0, ()))}, "r.handle.digests.chunk_tokens"),
        ({"handle": Handle(b"{}", DigestChain("a", 64, 65, (b"",)))}, "r.handle.digests.digests"),
    ],
)
def test_malformed_reports(changes: dict[str, Any], field: str) -> None:
    """What no lease can be granted on is refused by field."""
    with pytest.raises(InvalidRequest) as refused:
        check_report(replace(retention_of(), **changes), field="r")

    assert field == refused.value.field


@pytest.mark.parametrize("retention_id", ["", "x" * 513, "é" * 257])
def test_retention_ids(retention_id: str) -> None:
    """An engine's own name for a retention has 1 to 512 bytes."""
    with pytest.raises(InvalidRequest):
        check_retention_id(retention_id, field="r")
