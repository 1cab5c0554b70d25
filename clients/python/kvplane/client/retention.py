"""What an engine tells the plane of its retentions, and what it hears; plain data.

Times are seconds on the engine's monotonic clock. engine.proto holds each field's meaning.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvplane.client.names import SessionKey
from kvplane.digest import DigestChain


class EndReason(enum.IntEnum):
    """Why a retention ended. Numbers are those of lease.proto."""

    UNSPECIFIED = 0
    RELEASED = 1
    SUPERSEDED = 2
    EXPIRED = 3
    RECLAIMED = 4
    ENGINE_LOST = 5
    FENCED = 6
    CONSUMED = 7


@dataclass(frozen=True, slots=True)
class Retention:
    """The KV blocks that an engine keeps after a turn finished.

    Attributes:
        retention_id: The engine's own name for it, unique within an epoch.
        session_key: The session it belongs to.
        tokens: Tokens whose KV the blocks hold.
        blocks: KV blocks held.
        kv_transfer_params: How to read the blocks: one JSON object, UTF-8.
        deadline: When the engine frees it unless renewed, on the engine's monotonic clock.
        digests: Proof of which tokens the blocks hold.
        decision_id: The decision that routed the turn; empty if none.
        message_digest: Digest of the request's messages; empty if none.
        lease: The lease that it is held under, `leases/{lease}`; empty before the first.
        fencing_token: Token of that lease.
        reads: Reads by other engines since it began.

    """

    retention_id: str
    session_key: SessionKey
    tokens: int
    blocks: int
    kv_transfer_params: bytes
    deadline: float
    digests: DigestChain | None = None
    decision_id: str = ""
    message_digest: bytes = b""
    lease: str = ""
    fencing_token: int = 0
    reads: int = 0


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Load of an engine at one moment; blocks are KV blocks, shared ones counted once."""

    running_requests: int = 0
    waiting_requests: int = 0
    used_blocks: int = 0
    retained_blocks: int = 0
    retentions: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """What one frame says of an engine's retentions.

    Attributes:
        retentions: All that are held (full report), or those that began or changed.
        ended: Those that ended, by retention id.
        reads: Reads since the retention began, by retention id.
        mark: The source's own note of what the report covers; handed back unread.

    """

    retentions: Sequence[Retention] = ()
    ended: Sequence[tuple[str, EndReason]] = ()
    reads: Sequence[tuple[str, int]] = ()
    mark: int = 0


@dataclass(frozen=True, slots=True)
class Renew:
    """Hold a retention for `ttl` seconds from when the answered frame was sent.

    `worth`: see `LeaseDirective.worth` in engine.proto; zero if the plane does not say.
    """

    retention_id: str
    lease: str
    fencing_token: int
    ttl: float
    worth: float = 0.0


@dataclass(frozen=True, slots=True)
class Release:
    """Give a retention up as soon as no reader that holds its handle can be hurt."""

    retention_id: str
    lease: str
    fencing_token: int
    reason: EndReason


Directive = Renew | Release


class RetentionSource(Protocol):
    """The engine's side of an `EngineLink`. Called in the link's event loop; must not block.

    `RetentionLog` implements the first three methods.
    """

    def full_report(self) -> Report:
        """All that the engine holds, and what ended or was read since the last acknowledged."""
        ...

    def changes(self) -> Report:
        """What began, changed, ended or was read since the last acknowledged report."""
        ...

    def acknowledge(self, report: Report) -> None:
        """The plane has this report. What happened since it was made stays unreported."""
        ...

    def load(self) -> EngineLoad:
        """The engine's load now."""
        ...

    def apply(self, directives: Sequence[Directive], *, sent_at: float) -> None:
        """Carries out what the plane asks.

        Durations in `directives` count from `sent_at`, the time on the monotonic clock at which
        the answered frame was sent. Directives whose fencing token is smaller than one seen
        for the retention must be ignored.
        """
        ...
