from typing import Any

import pytest

from kvplane.transfer_params import KEY, TurnMark
from kvplane_connector.turn_marks import usable_mark

MARK = TurnMark("t", "m", "a", "s", "d", b"\x01")


def test_a_good_mark_is_taken() -> None:
    """What the gateway sends comes out as it went in."""
    assert usable_mark({KEY: MARK.encode()}) == MARK


@pytest.mark.parametrize(
    "value",
    [
        None,
        "text",
        {"session": ["t", "m", "a"]},
        {"session": ["t", "", "a", "s"]},
        {"session": ["t", "m", "a", ""]},
        {"session": ["t" * 257, "m", "a", "s"]},
        {"session": ["t", "m", "a", "s" * 513]},
        {"session": ["t", "m", "a", "\ud800"]},
        {"session": ["t", "m", "a", "s"], "decision_id": "d" * 513},
        {"session": ["t", "m", "a", "s"], "message_digest": "00" * 513},
        {"session": ["t", "m", "a", "s"], "message_digest": "xy"},
    ],
)
def test_a_mark_that_no_report_can_carry_is_none(value: Any) -> None:
    """Broken, over-long and unencodable marks leave a request without one."""
    assert usable_mark({KEY: value}) is None


def test_no_parameters_no_mark() -> None:
    """Requests without parameters have no mark."""
    assert usable_mark(None) is None
    assert usable_mark({}) is None
