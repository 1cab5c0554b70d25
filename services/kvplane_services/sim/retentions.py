"""What an engine keeps after a request finished, and for how long.

Two kinds of blocks outlive their request. *Staged* blocks wait on a prefill engine for the
decode engine's read, which ends them. *Retained* blocks wait on a decode engine for the next
turn. Both end at a deadline on the engine's own clock.

The fence: an expiry that left the engine in a handle is a promise. Whatever happens to the
lease, retained blocks are not given to anybody else before the last expiry exported.
"""

import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from kvplane.client.retention import Directive, EndReason, Release
from kvplane.digest import DigestChain
from kvplane.transfer_params import TurnMark

# Part of a TTL by which a handle's expiry must be movable before it is exported anew.
_REFRESH_SHARE = 0.25


class ReadEffect(enum.Enum):
    """What reading a retention does to it."""

    CONSUMES = "consumes"
    KEEPS = "keeps"


@dataclass(eq=False, slots=True)
class Retention:
    """Blocks that stay; times in seconds on the engine's clock.

    A handle that was exported is exported anew once its expiry can be moved by a quarter of the
    TTL: readers then find most of a TTL in it, and a plane that renews at every heartbeat costs
    no report each.

    Attributes:
        params: What a reader needs, as `kv_transfer_params`, but for the expiry.
        mark: Whose turn it was. None: nobody will hear of it.
        proof: Which tokens the blocks hold. None: no reader can check.
        deadline: When it ends unless renewed.
        exported: The last expiry that left in a handle; ends wait for it.
        release_reason: Why the plane gave it up, once it did.

    """

    retention_id: str
    block_ids: list[int]
    tokens: int
    params: dict[str, Any]
    on_read: ReadEffect
    deadline: float
    exported: float = 0.0
    mark: TurnMark | None = None
    proof: DigestChain | None = None
    lease: str = ""
    fencing_token: int = 0
    reads: int = 0
    release_reason: EndReason | None = None

    @property
    def ends_at(self) -> float:
        """When its blocks become free."""
        return max(self.deadline, self.exported)


class RetentionObserver(Protocol):
    """Who wants to know; told of retentions with a mark only."""

    def began(self, retention: Retention) -> None:
        """A retention began."""
        ...

    def renewed(self, retention: Retention) -> None:
        """Its deadline moved, by the plane's own order."""
        ...

    def exported(self, retention: Retention) -> None:
        """The expiry of its handle moved along."""
        ...

    def was_read(self, retention: Retention) -> None:
        """Another engine read it."""
        ...

    def ended(self, retention: Retention, reason: EndReason) -> None:
        """Its blocks are free."""
        ...


class RetentionTable:
    """All retentions of an engine.

    Args:
        release: Called with the block ids of each retention that ended.
        observer: Told of what the plane should know; None for an engine without a plane.

    """

    def __init__(
        self,
        *,
        release: Callable[[list[int]], None],
        observer: RetentionObserver | None = None,
    ) -> None:
        self._release = release
        self._observer = observer
        self._held: dict[str, Retention] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Retention]:
        return iter(list(self._held.values()))

    def get(self, retention_id: str) -> Retention | None:
        """The retention, or None if it ended."""
        return self._held.get(retention_id)

    def blocks(self) -> int:
        """Blocks held, shared ones counted once."""
        return len({block for held in self._held.values() for block in held.block_ids})

    def begin(self, retention: Retention) -> None:
        """Takes over the blocks of a request that finished."""
        self._held[retention.retention_id] = retention
        if retention.mark is not None and self._observer is not None:
            self._observer.began(retention)

    def extend(self, retention_ids: Iterable[str], until: float) -> None:
        """Keeps staged blocks longer for a decode engine whose request still waits."""
        for retention_id in retention_ids:
            held = self._held.get(retention_id)
            if held is not None and held.on_read is ReadEffect.CONSUMES:
                held.deadline = max(held.deadline, until)

    def apply(self, directive: Directive, *, sent_at: float, now: float) -> None:
        """Carries out what the plane asks; stale fencing tokens and unknown names are ignored.

        A renewal never shortens. A release ends the retention as early as the fence allows, and
        no renewal undoes it.

        Args:
            directive: What to do.
            sent_at: When the answered frame was sent; durations count from there.
            now: The time.

        """
        held = self._held.get(directive.retention_id)
        if held is None or directive.fencing_token < held.fencing_token:
            return
        held.lease, held.fencing_token = directive.lease, directive.fencing_token
        if isinstance(directive, Release):
            held.release_reason = directive.reason
            held.deadline = now
            self.sweep(now)
        elif held.release_reason is None:
            self._renew(held, sent_at + directive.ttl, directive.ttl)

    def read(self, retention_id: str) -> bool:
        """Counts a read; False if there is no such retention (any more)."""
        held = self._held.get(retention_id)
        if held is None:
            return False
        held.reads += 1
        if held.on_read is ReadEffect.CONSUMES:
            self._end(held, EndReason.CONSUMED)
        elif held.mark is not None and self._observer is not None:
            self._observer.was_read(held)
        return True

    def sweep(self, now: float) -> list[Retention]:
        """Ends what has run out, and returns those that nobody gave up: they expired."""
        over = [held for held in self._held.values() if held.ends_at <= now]
        for held in over:
            self._end(held, held.release_reason or EndReason.EXPIRED)
        return [held for held in over if held.release_reason is None]

    def _renew(self, held: Retention, deadline: float, ttl: float) -> None:
        held.deadline = max(held.deadline, deadline)
        stale = held.deadline - held.exported >= ttl * _REFRESH_SHARE
        if stale:
            held.exported = held.deadline
        if held.mark is not None and self._observer is not None:
            if stale:
                self._observer.exported(held)
            else:
                self._observer.renewed(held)

    def _end(self, held: Retention, reason: EndReason) -> None:
        del self._held[held.retention_id]
        self._release(held.block_ids)
        if held.mark is not None and self._observer is not None:
            self._observer.ended(held, reason)
