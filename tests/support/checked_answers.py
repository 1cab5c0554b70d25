"""Compares each answer to an engine's report with what it must and may say."""

from collections.abc import Iterable

from kvplane_services.engine.model import Engine, EngineLoad
from kvplane_services.lease.config import LeaseConfig
from kvplane_services.lease.model import EndReason
from kvplane_services.lease.reports import Directive, EngineReport, ReportAnswer, RetentionReport
from tests.support.clock import FakeClock
from tests.support.engine_model import Frame
from tests.support.lease_promises import Promise, Promises
from tests.support.state_plane import by_retention

CONFIG = LeaseConfig(remember_ended=256.0, idle_keep=120.0)
_GIVEN_UP = (EndReason.RELEASED, EndReason.SUPERSEDED)


class LargestToken:
    """The largest token that any life of the plane granted new."""

    def __init__(self) -> None:
        self._token = 0

    def grow(self, token: int) -> None:
        """A grant got this token, which must be larger than all before."""
        assert token > self._token
        self._token = token


class CheckedAnswers:
    """What one life of the plane answers to reports."""

    def __init__(
        self, *, promises: Promises, clock: FakeClock, largest_token: LargestToken
    ) -> None:
        self.promises = promises
        self.clock = clock
        self.largest_token = largest_token
        # Since when an engine's reports have told of waiting requests, and of retentions alone.
        self._waiting: dict[str, float] = {}
        self._stuck: dict[str, float] = {}

    def now(self) -> float:
        """Seconds on the plane's clock."""
        return self.clock.now()

    def check(self, engine: Engine, frame: Frame, answer: ReportAnswer) -> None:
        """Takes a frame's report into the promises, and checks the answer that it got."""
        self._note_load(engine.engine_id, frame.load)
        directives = by_retention(answer)
        assert len(directives) == len(answer.directives), "two orders for one retention"
        asked = self._take_in(engine, frame.report, directives)
        self._check_directives(engine, frame.report, answer.directives, asked)
        assert not answer.full_report_needed

    def _take_in(
        self, engine: Engine, report: EngineReport, directives: dict[str, Directive]
    ) -> set[str]:
        """Does what the report says to the promises; returns whom the plane must answer."""
        granted = [
            self._granted(engine, retention, directives)
            for retention in report.retentions
            if self.promises.find(engine.engine_id, retention.retention_id) is None
        ]
        asked = {promise.retention_id for promise in granted}
        for retention in report.retentions:
            if retention.retention_id not in asked and self._refresh(engine, retention):
                asked.add(retention.retention_id)
        # In the order of their tokens, whichever way the plane went about it.
        for promise in sorted(granted, key=lambda each: each.token):
            if promise.new:
                self.largest_token.grow(promise.token)
            self.promises.grant(promise)
            if promise.before is not None and promise.before.ended in _GIVEN_UP:
                # Whoever gave the blocks up has not been heard yet.
                self.promises.release(promise, promise.before.ended)
        self._take_in_news(engine, report)
        if report.full:
            self._end_absent(engine, report)
        return asked

    def _refresh(self, engine: Engine, retention: RetentionReport) -> bool:
        """Takes in what is known already; returns whether the engine knows the lease wrongly."""
        promise = self.promises.find(engine.engine_id, retention.retention_id)
        assert promise is not None
        self.promises.hold(promise, self.now() + retention.remaining)
        self._count_reads(promise, retention.reads)
        if (retention.lease, retention.fencing_token) == (promise.name, promise.token):
            return False
        promise.told = False
        return True

    def _take_in_news(self, engine: Engine, report: EngineReport) -> None:
        for retention_id, reads in report.reads:
            promise = self.promises.find(engine.engine_id, retention_id)
            if promise is not None:
                self._count_reads(promise, reads)
        for retention_id, reason in report.ended:
            promise = self.promises.find(engine.engine_id, retention_id)
            if promise is not None:
                self.promises.end(promise, reason, self.now())

    def _count_reads(self, promise: Promise, reads: int) -> None:
        if reads > promise.reads:
            promise.reads, promise.used_at = reads, self.now()

    def _end_absent(self, engine: Engine, report: EngineReport) -> None:
        named = {retention.retention_id for retention in report.retentions}
        for promise in self.promises.on_engine(engine.engine_id):
            promise.told = False
            if promise.retention_id not in named:
                due = self.now() >= promise.deadline - CONFIG.grace
                reason = EndReason.EXPIRED if due else EndReason.RECLAIMED
                self.promises.end(promise, reason, self.now())

    def _granted(
        self, engine: Engine, retention: RetentionReport, directives: dict[str, Directive]
    ) -> Promise:
        assert retention.retention_id in directives, "a retention without an answer"
        now, directive = self.now(), directives[retention.retention_id]
        assert directive.lease not in self.promises.all, "a lease came back to life"
        before = self.promises.all.get(retention.lease)
        if retention.lease:
            # One turn of its session as before: nothing that is older gets before it.
            assert directive.fencing_token == retention.fencing_token
            # A lease of an earlier life of the plane is taken up, one that ended is not.
            assert (directive.lease == retention.lease) == (before is None)
        promise = Promise(
            name=directive.lease,
            token=directive.fencing_token,
            new=not retention.lease,
            before=before,
            engine_id=engine.engine_id,
            epoch=engine.epoch,
            retention_id=retention.retention_id,
            session=retention.session_key.session_id,
            blocks=retention.blocks,
            deadline=now + CONFIG.ttl + CONFIG.grace,
            used_at=now,
            renewed_at=now,
            reads=retention.reads,
        )
        self.promises.hold(promise, now + retention.remaining)
        return promise

    def _check_directives(
        self,
        engine: Engine,
        report: EngineReport,
        directives: Iterable[Directive],
        asked: set[str],
    ) -> None:
        now = self.now()
        by_id = {directive.retention_id: directive for directive in directives}
        for directive in by_id.values():
            promise = self.promises.find(engine.engine_id, directive.retention_id)
            assert promise is not None
            assert (directive.lease, directive.fencing_token) == (promise.name, promise.token)
            if directive.release is None:
                assert promise.release is None
                assert directive.renew == CONFIG.ttl
                wanted = bool(promise.standing(now)) or promise.idle(now) < CONFIG.idle_keep
                assert promise.retention_id in asked or (wanted and not self._is_stuck(engine))
                promise.renewed_at = now
                self.promises.hold(promise, now + directive.renew)
                continue
            if promise.release is None:
                # Only where requests wait for memory, and nobody claims the lease.
                assert directive.release is EndReason.RECLAIMED
                assert self._waits(engine)
                assert not promise.standing(now)
                self.promises.release(promise, EndReason.RECLAIMED)
            assert directive.release is promise.release
            assert not promise.told, "released twice on one stream"
            promise.told = True
        self._check_nothing_left_out(engine, by_id, asked, everything=report.full)

    def _check_nothing_left_out(
        self, engine: Engine, by_id: dict[str, Directive], asked: set[str], *, everything: bool
    ) -> None:
        now = self.now()
        live = self.promises.on_engine(engine.engine_id)
        active = [promise for promise in live if promise.release is None]
        layout = engine.layout
        assert layout is not None
        fits = sum(each.blocks for each in active) <= layout.total_blocks * CONFIG.retention_budget
        for promise in live:
            if promise.release is not None:
                assert promise.told
                continue
            due = everything or now >= promise.renewed_at + CONFIG.renew_interval
            wanted = promise.idle(now) < CONFIG.idle_keep
            must = due and wanted and fits and engine.engine_id not in self._waiting
            if must or promise.retention_id in asked:
                assert promise.retention_id in by_id, "not renewed"

    def _note_load(self, engine_id: str, load: EngineLoad) -> None:
        waits = load.waiting_requests > 0
        for since, so in (
            (self._waiting, waits),
            (
                self._stuck,
                waits and load.running_requests == 0 and load.used_blocks == load.retained_blocks,
            ),
        ):
            if so:
                since.setdefault(engine_id, self.now())
            else:
                since.pop(engine_id, None)

    def _waits(self, engine: Engine) -> bool:
        since = self._waiting.get(engine.engine_id, float("inf"))
        return self.now() - since >= CONFIG.pressure_after

    def _is_stuck(self, engine: Engine) -> bool:
        since = self._stuck.get(engine.engine_id, float("inf"))
        return self.now() - since >= CONFIG.pressure_after
