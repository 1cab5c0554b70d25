"""An engine as it sees itself: what it holds, until when, and what it was told.

It keeps its own clock, which runs at its own rate, and it knows nothing of the plane but the
answers that reached it. Tests of the lease rules take it for the truth.
"""

from dataclasses import dataclass, field, replace

from kvplane_services.engine.model import Engine, EngineLoad
from kvplane_services.lease.model import EndReason
from kvplane_services.lease.reports import Directive, EngineReport, RetentionReport
from tests.support.clock import FakeClock
from tests.support.state_values import engine_of, retention_of


@dataclass(slots=True)
class Held:
    """A retention; `until` is when the engine frees it by itself, on its own clock."""

    retention_id: str
    session: str
    blocks: int
    until: float
    lease: str = ""
    fencing_token: int = 0
    reads: int = 0
    # Why it is to be freed as soon as its readers are done.
    release: EndReason | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """A heartbeat on its way to the plane, and the answer on its way back."""

    epoch: int
    sent_at: float
    report: EngineReport
    load: EngineLoad
    directives: tuple[Directive, ...] | None = None


@dataclass(slots=True)
class EngineModel:
    """One engine. `rate`: how many of its seconds pass in one of the plane's."""

    engine_id: str
    clock: FakeClock
    rate: float = 1.0
    described: Engine = field(init=False)
    # As the plane registered it; None while it knows that it has to register.
    registered: Engine | None = None
    load: EngineLoad = field(default_factory=EngineLoad)
    held: dict[str, Held] = field(default_factory=dict)
    # Whether the stream is up: the first frame of a stream reports everything.
    streaming: bool = False
    frame: Frame | None = None
    # News that no answered frame has carried.
    changed: set[str] = field(default_factory=set)
    ended: dict[str, EndReason] = field(default_factory=dict)
    reads: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.described = engine_of(self.engine_id)

    def now(self) -> float:
        """Seconds on the engine's own clock."""
        return self.clock.now() * self.rate

    # -- What happens in it ------------------------------------------------------------------

    def restart(self) -> None:
        """A new process, with nothing of the old one."""
        self.__init__(self.engine_id, self.clock, self.rate)  # type: ignore[misc]

    def begin(self, retention_id: str, *, session: str, blocks: int, ttl: float) -> None:
        """A turn leaves a retention."""
        self.held[retention_id] = Held(retention_id, session, blocks, self.now() + ttl)
        self.changed.add(retention_id)

    def free(self, retention_id: str, reason: EndReason) -> None:
        """Frees a retention, and will say so."""
        del self.held[retention_id]
        self.changed.discard(retention_id)
        self.reads.pop(retention_id, None)
        self.ended[retention_id] = reason

    def lose(self, retention_id: str) -> None:
        """Frees a retention, and never says so; what comes next is a full report."""
        self.free(retention_id, EndReason.RECLAIMED)
        del self.ended[retention_id]
        self.cut()

    def read(self, retention_id: str) -> None:
        """Somebody reads a retention."""
        held = self.held[retention_id]
        held.reads += 1
        self.reads[retention_id] = held.reads

    def free_due(self) -> None:
        """Frees what nobody renewed in time."""
        for held in list(self.held.values()):
            if held.until <= self.now():
                self.free(held.retention_id, EndReason.EXPIRED)

    def free_released(self) -> None:
        """Frees what it was told to release."""
        for held in list(self.held.values()):
            if held.release is not None:
                self.free(held.retention_id, EndReason.RELEASED)

    # -- What it says and hears --------------------------------------------------------------

    def send(self) -> Frame:
        """Puts a frame on its way: all that it holds on a new stream, else what is new."""
        assert self.registered is not None
        assert self.frame is None
        named = self.changed if self.streaming else self.held
        self.frame = Frame(
            epoch=self.registered.epoch,
            sent_at=self.now(),
            load=self.load,
            report=EngineReport(
                retentions=tuple(
                    self._told(self.held[each]) for each in self.held if each in named
                ),
                ended=tuple(self.ended.items()),
                reads=tuple(self.reads.items()),
                full=not self.streaming,
            ),
        )
        self.streaming = True
        return self.frame

    def answered(self, directives: tuple[Directive, ...]) -> None:
        """The plane has taken the frame in; its answer is on its way."""
        assert self.frame is not None
        self.frame = replace(self.frame, directives=directives)

    def hear(self) -> None:
        """The answer arrives."""
        frame, self.frame = self.frame, None
        assert frame is not None
        assert frame.directives is not None
        self._acknowledge(frame.report)
        for directive in frame.directives:
            self._obey(directive, frame.sent_at)

    def cut(self) -> None:
        """The stream breaks, with what is on its way."""
        self.frame = None
        self.streaming = False

    def _told(self, held: Held) -> RetentionReport:
        return retention_of(
            held.retention_id,
            held.session,
            blocks=held.blocks,
            lease=held.lease,
            fencing_token=held.fencing_token,
            reads=held.reads,
            remaining=max(0.0, held.until - self.now()),
        )

    def _obey(self, directive: Directive, sent_at: float) -> None:
        held = self.held.get(directive.retention_id)
        if held is None or directive.fencing_token < held.fencing_token:
            return
        held.lease, held.fencing_token = directive.lease, directive.fencing_token
        if directive.release is not None:
            held.release = directive.release
        else:
            # A renewal that was on its way for long says less than what is known already.
            held.until = max(held.until, sent_at + directive.renew)

    def _acknowledge(self, report: EngineReport) -> None:
        # A full report holds everything that a delta would, but what began after it was sent.
        said = {retention.retention_id for retention in report.retentions}
        self.changed -= said
        for retention_id, _ in report.ended:
            self.ended.pop(retention_id, None)
        for retention_id, reads in report.reads:
            if self.reads.get(retention_id) == reads:
                del self.reads[retention_id]
