"""A decode engine whose memory requests and retentions share, without the rest of it."""

from collections import deque
from dataclasses import dataclass, field

from kvplane_services.bench.retention.trace import Turn
from kvplane_services.lease.return_kinds import Kind, first_kind


@dataclass(slots=True, eq=False)
class Held:
    """What a turn left, and since when; `tokens` of it are still there."""

    turn: Turn
    since: float
    tokens: int
    claimed: bool = False
    # What rules note.
    rank: float = 0.0
    kind: Kind = field(default_factory=lambda: first_kind(0))


@dataclass(slots=True, eq=False)
class Running:
    """A turn that runs or waits, the tokens that it needs more, and what it continues from."""

    turn: Turn
    need: int
    source: Held | None = None


@dataclass(slots=True, eq=False)
class SimulatedEngine:
    """Memory in tokens."""

    number: int
    capacity: int
    in_flight: int = 0
    held_tokens: int = 0
    held: dict[int, Held] = field(default_factory=dict)
    waiting: deque[Running] = field(default_factory=deque)

    @property
    def free(self) -> int:
        """Tokens that nothing takes."""
        return self.capacity - self.in_flight - self.held_tokens

    @property
    def wanted(self) -> int:
        """What requests take and wait for."""
        return self.in_flight + sum(one.need for one in self.waiting)

    def hold(self, held: Held) -> None:
        """Keeps what a turn left."""
        self.held[held.turn.number] = held
        self.held_tokens += held.tokens

    def drop(self, held: Held) -> None:
        """Frees it."""
        del self.held[held.turn.number]
        self.held_tokens -= held.tokens
