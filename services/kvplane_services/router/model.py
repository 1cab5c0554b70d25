"""What a decision is. Pure data; see router.proto for the meaning of each field."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvplane_services.engine.model import FixedRetention
from kvplane_services.session.model import SessionKey


class Strategy(enum.Enum):
    """Where the KV of the history comes from."""

    LOCAL = "local"
    PULL = "pull"
    RECOMPUTE = "recompute"


class DecisionReason(enum.Enum):
    """Why a strategy was chosen."""

    FORCED = "forced"
    LEASE_LIVE = "lease_live"
    NO_LEASE = "no_lease"
    LEASE_ENDED = "lease_ended"
    HISTORY_TOO_SHORT = "history_too_short"
    HOLDER_UNAVAILABLE = "holder_unavailable"
    NO_PREFILL_ENGINE = "no_prefill_engine"
    STOCK_CONNECTOR = "stock_connector"
    CHEAPEST = "cheapest"
    EXPLORING = "exploring"


class LegKind(enum.Enum):
    """Which part of a turn."""

    PREFILL = "prefill"
    DECODE = "decode"


class RouteOutcome(enum.Enum):
    """How a leg went."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Subject:
    """What the router needs to know of a turn; `session_key.session_id` may be empty.

    `message_digests` has one entry for the first 1, 2, ... n messages of a client that
    names no session.
    """

    session_key: SessionKey
    message_digests: tuple[bytes, ...] = ()
    prompt_tokens: int = 0
    max_output_tokens: int = 0
    block_hashes: tuple[bytes, ...] = ()
    history_digest: bytes = b""


@dataclass(frozen=True, slots=True)
class Leg:
    """One engine's part in a turn; `engine` is a full resource name, the parameters are JSON.

    Empty parameters are those of a stock decode engine; `fixed_retention` is set if it keeps turns.
    """

    engine: str
    epoch: int
    endpoint: str
    kv_transfer_params: bytes
    data_parallel_rank: int | None = None
    fixed_retention: FixedRetention | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The router's answer for one turn; durations in seconds."""

    decision_id: str
    strategy: Strategy
    reason: DecisionReason
    details: str
    prefill: Leg | None
    decode: Leg
    session_key: SessionKey
    lease: str = ""
    fencing_token: int = 0
    held_tokens: int = 0
    ttl: float = 0.0
    waited: float = 0.0


@dataclass(frozen=True, slots=True)
class KeptTurn:
    """What the answer of a stock engine says of the blocks that stay; `handle` is JSON."""

    handle: bytes
    history_digest: bytes = b""


@dataclass(frozen=True, slots=True)
class LegReport:
    """How one leg of a decision went; durations in seconds, zero if unknown."""

    decision_id: str
    leg: LegKind
    outcome: RouteOutcome
    time_to_first_byte: float = 0.0
    duration: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    kept: KeptTurn | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """An engine and its scores for one leg."""

    engine: str
    leg: LegKind
    score: float
    scores: Mapping[str, float] = field(default_factory=dict)
    rejection: str = ""
    in_flight: int = 0


@dataclass(frozen=True, slots=True)
class StrategyCandidate:
    """A strategy and what speaks against it; `predicted_ms` to the first token, if predicted."""

    strategy: Strategy
    predicted_ms: float | None = None
    rejection: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything that a decision weighs; `decision` is None if deciding would fail."""

    decision: Decision | None
    failure: str
    candidates: tuple[Candidate, ...]
    strategies: tuple[StrategyCandidate, ...]
