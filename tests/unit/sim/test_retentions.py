"""What stays after a turn, and until when."""

import math

import pytest

from kvplane.client.retention import EndReason, Release, Renew
from kvplane.transfer_params import TurnMark
from kvplane_services.sim.retentions import ReadEffect, Retention, RetentionTable

MARK = TurnMark("tenant", "model", "", "session")


class Witness:
    """Remembers what it was told, and which blocks came free."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.freed: list[int] = []

    def began(self, retention: Retention) -> None:
        self.told.append("began")

    def renewed(self, retention: Retention) -> None:
        self.told.append("renewed")

    def exported(self, retention: Retention) -> None:
        self.told.append(f"exported {retention.exported:g}")

    def was_read(self, retention: Retention) -> None:
        self.told.append(f"read {retention.reads}")

    def ended(self, retention: Retention, reason: EndReason) -> None:
        self.told.append(reason.name)


def _table() -> tuple[RetentionTable, Witness]:
    witness = Witness()
    return RetentionTable(release=witness.freed.extend, observer=witness), witness


def _retention(
    name: str = "r",
    *,
    blocks: tuple[int, ...] = (1, 2),
    on_read: ReadEffect = ReadEffect.KEEPS,
    deadline: float = 130.0,
    mark: TurnMark | None = MARK,
) -> Retention:
    return Retention(
        retention_id=name,
        block_ids=list(blocks),
        tokens=8,
        params={},
        on_read=on_read,
        deadline=deadline,
        exported=deadline if on_read is ReadEffect.KEEPS else 0.0,
        mark=mark,
    )


def _renew(ttl: float = 30.0, token: int = 1) -> Renew:
    return Renew("r", "leases/l", token, ttl)


def _release(token: int = 1) -> Release:
    return Release("r", "leases/l", token, EndReason.SUPERSEDED)


def test_a_retention_ends_at_its_deadline() -> None:
    """Unrenewed blocks come free at the deadline, not before, as EXPIRED."""
    table, witness = _table()
    table.begin(_retention())

    assert table.sweep(129.9) == []
    assert len(table.sweep(130.0)) == 1
    assert witness.freed == [1, 2]
    assert witness.told == ["began", "EXPIRED"]


def test_a_renewal_counts_from_when_the_frame_was_sent() -> None:
    """The new deadline is the send time plus the TTL, and never earlier than before."""
    table, _ = _table()
    table.begin(_retention())

    table.apply(_renew(30.0), sent_at=110.0, now=112.0)
    assert table.sweep(139.9) == []
    table.apply(_renew(5.0), sent_at=115.0, now=115.0)
    assert table.sweep(139.9) == []
    assert len(table.sweep(140.0)) == 1


@pytest.mark.parametrize(("sent_at", "told"), [(107.4, "renewed"), (107.5, "exported 137.5")])
def test_a_handle_is_exported_anew_only_after_a_quarter_of_the_ttl(
    sent_at: float, told: str
) -> None:
    """Frequent renewals do not cause a report each."""
    table, witness = _table()
    table.begin(_retention())

    table.apply(_renew(), sent_at=sent_at, now=sent_at)
    assert witness.told == ["began", told]


def test_a_release_waits_for_the_last_exported_expiry() -> None:
    """Given-up blocks stay until no handle promises them, then end for the given reason."""
    table, witness = _table()
    table.begin(_retention())

    table.apply(_release(), sent_at=101.0, now=101.0)
    table.apply(_renew(60.0), sent_at=102.0, now=102.0)
    assert table.sweep(129.9) == []
    assert table.sweep(130.0) == []  # Nothing expired: it was given up.
    assert witness.told == ["began", "SUPERSEDED"]


def test_a_renewal_that_was_not_exported_does_not_bind_a_release() -> None:
    """A release takes back what no reader was told."""
    table, witness = _table()
    table.begin(_retention())
    table.apply(_renew(), sent_at=105.0, now=105.0)  # Until 135, exported 130.

    table.apply(_release(), sent_at=106.0, now=106.0)
    table.sweep(130.0)
    assert witness.told[-1] == "SUPERSEDED"


def test_stale_tokens_and_unknown_names_are_ignored() -> None:
    """A directive under an older fencing token changes nothing."""
    table, _ = _table()
    table.begin(_retention())
    table.apply(_renew(token=5), sent_at=100.0, now=100.0)

    table.apply(_renew(600.0, token=4), sent_at=100.0, now=100.0)
    table.apply(_release(token=4), sent_at=100.0, now=100.0)
    table.apply(Renew("other", "leases/x", 9, 60.0), sent_at=100.0, now=100.0)
    assert len(table.sweep(130.0)) == 1


def test_a_read_counts_and_keeps() -> None:
    """Reading a retention under a lease frees nothing, however often."""
    table, witness = _table()
    table.begin(_retention())

    assert table.read("r")
    assert table.read("r")
    assert witness.freed == []
    assert witness.told == ["began", "read 1", "read 2"]


def test_a_read_consumes_staged_blocks() -> None:
    """Blocks staged for a decode engine come free at its read; a second read finds nothing."""
    table, witness = _table()
    table.begin(_retention(on_read=ReadEffect.CONSUMES, mark=None))

    assert table.read("r")
    assert witness.freed == [1, 2]
    assert not table.read("r")
    assert witness.told == []


def test_waiting_readers_extend_staged_blocks_only() -> None:
    """Keep-alives move the deadline of staged blocks, and never that of a lease."""
    table, _ = _table()
    table.begin(_retention("staged", on_read=ReadEffect.CONSUMES, mark=None))
    table.begin(_retention("leased"))

    table.extend(["staged", "leased", "unknown"], 150.0)
    assert [one.retention_id for one in table.sweep(140.0)] == ["leased"]
    assert [one.retention_id for one in table.sweep(150.0)] == ["staged"]


def test_shared_blocks_are_counted_once() -> None:
    """Two turns that share a prefix hold its blocks once."""
    table, _ = _table()
    table.begin(_retention("one", blocks=(1, 2, 3)))
    table.begin(_retention("two", blocks=(1, 2, 4), deadline=math.inf))

    assert table.blocks() == 4
    assert len(table) == 2
