"""How answers look."""

import datetime as dt
import json

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from kvplane.api.engine.v1 import engine_pb2
from kvplane.api.lease.v1 import lease_pb2
from kvplane_services.cli.output import (
    enum_text,
    print_fields,
    print_json,
    print_json_list,
    print_table,
    until_text,
)
from tests.support.clock import FakeClock


def test_piped_tables_cut_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Where nobody looks at a terminal each row is one line with whole cells."""
    name = "sessions/" + "x" * 500
    print_table(("NAME", "ENGINE"), [(name, "engines/d"), ("[bold]b[/]", "")], empty="none")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [
        ["NAME", "ENGINE"],
        [name, "engines/d"],
        ["[bold]b[/]", "-"],
    ]


def test_an_empty_table_says_so_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts read no rows; people read why."""
    print_table(("NAME",), [], empty="no leases")
    assert capsys.readouterr() == ("", "no leases\n")


def test_json_has_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    """The protobuf JSON mapping, with fields at their default: scripts find all keys."""
    print_json(lease_pb2.Lease(name="leases/a", tokens=7, state=lease_pb2.Lease.STATE_ACTIVE))
    found = json.loads(capsys.readouterr().out)
    assert found["name"] == "leases/a"
    assert found["tokens"] == "7"  # int64 is a string in the mapping.
    assert found["state"] == "STATE_ACTIVE"
    assert found["retentionId"] == ""
    assert found["claims"] == []


def test_json_of_an_empty_list_is_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    """No items are an empty list, not a missing key."""
    print_json_list("leases", [])
    assert json.loads(capsys.readouterr().out) == {"leases": []}


def test_enums_are_shown_without_their_prefix() -> None:
    """Values read as words; those that this version does not know as numbers."""
    assert enum_text(engine_pb2.Role, engine_pb2.ROLE_PREFILL) == "prefill"
    assert enum_text(engine_pb2.Engine.State, engine_pb2.Engine.STATE_DRAINING) == "draining"
    assert enum_text(lease_pb2.EndReason, lease_pb2.END_REASON_ENGINE_LOST) == "engine_lost"
    assert enum_text(lease_pb2.EndReason, 99) == "99"


def test_moments_are_shown_from_now() -> None:
    """A moment ahead is "in", one behind is "ago", and none is nothing."""
    clock = FakeClock()
    ahead, behind = Timestamp(), Timestamp()
    ahead.FromDatetime(clock.wall() + dt.timedelta(seconds=30))
    behind.FromDatetime(clock.wall() - dt.timedelta(minutes=3))
    assert until_text(ahead, clock=clock) == "in 30.0 s"
    assert until_text(behind, clock=clock) == "3m 0s ago"
    assert until_text(Timestamp(), clock=clock) == ""


def test_fields_are_aligned_and_empty_ones_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """One pair a line, values in one column."""
    print_fields([("name", "a"), ("fencing token", "7"), ("decision", "")])
    assert capsys.readouterr().out == "name           a\nfencing token  7\n"
