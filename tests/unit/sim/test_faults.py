"""Faults as they are asked for."""

import pytest

from kvplane_services.errors import InvalidRequest
from kvplane_services.sim.faults import FaultKind, FaultSet, parse_fault, parse_faults, parse_option


def test_a_fault_wears_off_after_its_count() -> None:
    """A fault with a count hits so many requests and no more; without one it stays."""
    faults = FaultSet([parse_option("status:status=503,count=2"), parse_option("no-params")])

    hits = [faults.take(FaultKind.STATUS) is not None for _ in range(3)]
    assert hits == [True, True, False]
    assert faults.take(FaultKind.NO_PARAMS) is faults.take(FaultKind.NO_PARAMS) is not None


def test_values_have_defaults() -> None:
    """What is not given is filled in."""
    assert parse_option("stall:at-byte=9").values == {"at_byte": 9.0, "seconds": 0}


def test_faults_are_shown_as_they_are_set() -> None:
    """What was posted can be posted again."""
    body = {"faults": [{"kind": "slow", "factor": 3, "count": None}]}
    faults = FaultSet()
    faults.replace(parse_faults(body))

    assert {"faults": faults.describe()} == body
    assert faults.lasting(FaultKind.SLOW) is not None


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"kind": "explode"}, "there are die, cut"),
        ({"kind": "die", "seconds": 1}, "does not take seconds"),
        ({"kind": "slow", "count": 1}, "does not take count"),
        ({"kind": "stall", "seconds": -1}, "0 or more"),
        ({"kind": "stall", "seconds": True}, "must be a number"),
        ("die", "JSON object"),
    ],
)
def test_unknown_faults_are_refused(value: object, says: str) -> None:
    """What is not understood is refused with what would be."""
    with pytest.raises(InvalidRequest, match=says):
        parse_fault(value)


@pytest.mark.parametrize("text", ["die:at_byte", "die:at_byte=x", "nothing"])
def test_unreadable_options_are_refused(text: str) -> None:
    """A command-line fault that cannot be read is refused."""
    with pytest.raises(InvalidRequest):
        parse_option(text)


@pytest.mark.parametrize("body", [[], {}, {"faults": {}}, None])
def test_a_body_without_a_list_of_faults_is_refused(body: object) -> None:
    """The admin endpoint takes a list of faults only."""
    with pytest.raises(InvalidRequest, match="faults"):
        parse_faults(body)
