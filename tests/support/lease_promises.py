"""What the plane has promised, worked out from what it was told and what it answered.

An independent count of the lease rules: it shares no code with the manager, and follows only
what goes over the wire. Times are on the plane's clock; nothing here is rounded.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvplane_services.lease.model import EndReason, LeaseState


@dataclass(slots=True)
class Promise:
    """A lease as it must be. `deadline` is when the plane may call it expired."""

    name: str
    token: int
    engine_id: str
    epoch: int
    retention_id: str
    session: str
    blocks: int
    deadline: float
    used_at: float
    # False if its token is that of an earlier lease on the same retention, ...
    new: bool = True
    # ... which is known if it has ended in this life of the plane.
    before: "Promise | None" = None
    fixed: bool = False
    reads: int = 0
    renewed_at: float = 0.0
    release: EndReason | None = None
    # Whether the engine's present stream was told to release it.
    told: bool = False
    ended: EndReason | None = None
    ended_at: float = 0.0
    claims: dict[str, float] = field(default_factory=dict)

    @property
    def live(self) -> bool:
        """Whether it has not ended."""
        return self.ended is None

    @property
    def state(self) -> LeaseState:
        """The state that anybody must see."""
        if self.ended is not None:
            return LeaseState.ENDED
        return LeaseState.ACTIVE if self.release is None else LeaseState.RELEASING

    def standing(self, now: float) -> dict[str, float]:
        """Claims that stand, and for how long still; what ran out was a use until then."""
        for holder, until in list(self.claims.items()):
            if until <= now:
                del self.claims[holder]
                self.used_at = max(self.used_at, until)
        return {holder: until - now for holder, until in sorted(self.claims.items())}

    def idle(self, now: float) -> float:
        """Seconds since somebody wanted it."""
        return 0.0 if self.standing(now) else now - self.used_at


class Promises:
    """All leases of one life of the plane."""

    def __init__(self, *, grace: float, remember_ended: float) -> None:
        self._grace = grace
        self._remember_ended = remember_ended
        self.all: dict[str, Promise] = {}

    def live(self) -> Iterator[Promise]:
        """Leases that have not ended."""
        return (promise for promise in self.all.values() if promise.live)

    def on_engine(self, engine_id: str) -> list[Promise]:
        """Live leases of an engine."""
        return [promise for promise in self.live() if promise.engine_id == engine_id]

    def find(self, engine_id: str, retention_id: str) -> Promise | None:
        """The live lease on a retention."""
        found = [
            promise for promise in self.on_engine(engine_id) if promise.retention_id == retention_id
        ]
        assert len(found) <= 1, found
        return found[0] if found else None

    def active(self, session: str) -> Promise | None:
        """The session's active lease."""
        found = [
            promise
            for promise in self.live()
            if promise.session == session and promise.release is None
        ]
        assert len(found) <= 1, found
        return found[0] if found else None

    def grant(self, promise: Promise) -> None:
        """A lease begins: of its session's, only the one with the largest token stays active."""
        other = self.active(promise.session)
        self.all[promise.name] = promise
        if other is not None:
            older = min(other, promise, key=lambda each: each.token)
            self.release(older, EndReason.SUPERSEDED)

    def hold(self, promise: Promise, until: float) -> None:
        """The engine may hold the blocks until then: never shorter than was known."""
        promise.deadline = max(promise.deadline, until + self._grace)

    def release(self, promise: Promise, reason: EndReason) -> None:
        """Somebody wants a lease gone: the first reason stands."""
        if promise.live and promise.release is None:
            promise.release = reason
            promise.told = False

    def end(self, promise: Promise, reason: EndReason, now: float) -> None:
        """A lease is over: why it was being released stands before why it ended."""
        assert promise.live
        promise.ended = promise.release or reason
        promise.ended_at = now

    def end_all(self, engine_id: str, reason: EndReason, now: float, *, before: int) -> None:
        """Leases of registrations before that epoch are over."""
        for promise in self.on_engine(engine_id):
            if promise.epoch < before:
                self.end(promise, reason, now)

    def pass_to(self, now: float) -> list[Promise]:
        """Time has passed: each lease ends at its own deadline. Returns those that did."""
        due = [promise for promise in self.live() if promise.deadline <= now]
        for promise in due:
            self.end(promise, EndReason.EXPIRED, now)
        for promise in list(self.all.values()):
            if not promise.live and promise.ended_at + self._remember_ended <= now:
                del self.all[promise.name]
        return due
