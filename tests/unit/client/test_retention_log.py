"""What the plane has yet to hear."""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvplane.client import EndReason, Report, Retention, RetentionLog, SessionKey


def retention(name: str, *, tokens: int = 16) -> Retention:
    return Retention(
        retention_id=name,
        session_key=SessionKey("default", "m", "", name),
        tokens=tokens,
        blocks=1,
        kv_transfer_params=b"{}",
        deadline=1030.0,
    )


def ids(report: Report) -> list[str]:
    return [one.retention_id for one in report.retentions]


def test_change_is_reported_until_acknowledged() -> None:
    """An unacknowledged change is in every report; an acknowledged one in none."""
    log = RetentionLog()
    log.put(retention("a"))
    first = log.changes()
    assert ids(first) == ids(log.changes()) == ["a"]
    log.acknowledge(first)
    assert log.changes() == Report(mark=first.mark)
    assert ids(log.full_report()) == ["a"]


def test_what_happens_in_flight_survives_the_acknowledgement() -> None:
    """A report acknowledges what it said and nothing that came later."""
    log = RetentionLog()
    log.put(retention("a"))
    log.put(retention("b"))
    in_flight = log.changes()
    log.put(retention("a", tokens=32))
    log.end("b", EndReason.EXPIRED)
    log.acknowledge(in_flight)
    later = log.changes()
    assert [(one.retention_id, one.tokens) for one in later.retentions] == [("a", 32)]
    assert later.ended == (("b", EndReason.EXPIRED),)


def test_end_of_what_was_never_reported_is_reported() -> None:
    """A retention that began and ended unreported is told as an end."""
    log = RetentionLog()
    log.put(retention("a"))
    log.end("a", EndReason.RECLAIMED)
    report = log.changes()
    assert (ids(report), report.ended) == ([], (("a", EndReason.RECLAIMED),))


def test_ending_twice_keeps_the_first_reason() -> None:
    """Only the first end counts, and ends of unknown retentions are ignored."""
    log = RetentionLog()
    log.put(retention("a"))
    log.end("a", EndReason.RECLAIMED)
    log.end("a", EndReason.EXPIRED)
    log.end("unknown", EndReason.EXPIRED)
    assert log.changes().ended == (("a", EndReason.RECLAIMED),)


def test_reads_only_grow() -> None:
    """A count of reads that is not larger than the one before is not reported."""
    log = RetentionLog()
    log.put(retention("a"))
    log.read("a", 2)
    log.read("a", 1)
    report = log.changes()
    assert report.reads == (("a", 2),)
    log.acknowledge(report)
    log.read("a", 2)
    assert log.changes().reads == ()


def test_renewal_ordered_by_the_plane_is_not_news() -> None:
    """A renewal moves the deadline and keeps the lease, without a report."""
    log = RetentionLog()
    log.put(retention("a"))
    log.acknowledge(log.changes())
    log.renew("a", deadline=2000.0, lease="leases/x", fencing_token=7)
    log.renew("unknown", deadline=2000.0, lease="leases/y", fencing_token=8)
    assert log.changes().retentions == ()
    held = replace(retention("a"), deadline=2000.0, lease="leases/x", fencing_token=7)
    assert log.held == {"a": held}


def test_full_report_tells_ends_too() -> None:
    """Ends that the plane has not confirmed are part of a full report, with their reasons."""
    log = RetentionLog()
    log.put(retention("a"))
    log.end("a", EndReason.RECLAIMED)
    full = log.full_report()
    assert full.ended == (("a", EndReason.RECLAIMED),)
    log.acknowledge(full)
    assert log.changes().ended == ()


class LossyLink(RuleBasedStateMachine):
    """Reports reach a plane or get lost, and so do their answers, in any interleaving."""

    def __init__(self) -> None:
        super().__init__()
        self.log = RetentionLog()
        self.truth: dict[str, tuple[int, int]] = {}
        self.reasons: dict[str, EndReason] = {}
        self.plane: dict[str, tuple[int, int]] = {}
        self.plane_reasons: dict[str, EndReason] = {}
        self.version = 0
        self.made: Report | None = None
        self.full_next = True
        self.born = 0

    @rule()
    def begin(self) -> None:
        self.born += 1
        self.truth[str(self.born)] = (self.born, 0)
        self.log.put(retention(str(self.born), tokens=self.born))

    @rule(data=st.data())
    def change(self, data: st.DataObject) -> None:
        if self.truth:
            name = data.draw(st.sampled_from(sorted(self.truth)))
            self.version += 1
            self.truth[name] = (1000 + self.version, self.truth[name][1])
            current = self.log.held[name]
            self.log.put(replace(current, tokens=1000 + self.version))

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        if self.truth:
            name = data.draw(st.sampled_from(sorted(self.truth)))
            tokens, reads = self.truth[name]
            self.truth[name] = (tokens, reads + 1)
            self.log.read(name, reads + 1)

    @rule(data=st.data(), reason=st.sampled_from([EndReason.EXPIRED, EndReason.RECLAIMED]))
    def end(self, data: st.DataObject, reason: EndReason) -> None:
        if self.truth:
            name = data.draw(st.sampled_from(sorted(self.truth)))
            del self.truth[name]
            self.reasons[name] = reason
            self.log.end(name, reason)

    @rule()
    def send(self) -> None:
        """A report reaches the plane; whether its answer comes back is the next rule's."""
        full = self.full_next
        report = self.log.full_report() if full else self.log.changes()
        if full:
            self.plane = {}
        for one in report.retentions:
            self.plane[one.retention_id] = (one.tokens, one.reads)
        for name, reads in report.reads:
            self.plane[name] = (self.plane[name][0], reads)
        for name, reason in report.ended:
            self.plane.pop(name, None)
            self.plane_reasons[name] = reason
        self.made, self.full_next = report, False

    @rule()
    def answer(self) -> None:
        if self.made is not None:
            self.log.acknowledge(self.made)
            self.made = None

    @rule()
    def lose(self) -> None:
        """The report or its answer is lost: the next stream starts with a full report."""
        self.made, self.full_next = None, True

    @invariant()
    def one_more_frame_tells_the_plane_everything(self) -> None:
        plane = dict({} if self.full_next else self.plane)
        reasons = dict(self.plane_reasons)
        report = self.log.full_report() if self.full_next else self.log.changes()
        for one in report.retentions:
            plane[one.retention_id] = (one.tokens, one.reads)
        for name, reads in report.reads:
            plane[name] = (plane[name][0], reads)
        for name, reason in report.ended:
            plane.pop(name, None)
            reasons[name] = reason
        assert plane == self.truth
        assert reasons == self.reasons


TestLossyLink = LossyLink.TestCase
TestLossyLink.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
