"""The engine's account of its retentions: until when each is kept, and who was told so.

Three times belong to a retention, all on the engine's clock, and they never pass each other:

    exported <= confirmed <= ordered

`ordered` is what the workers were last asked to keep to; `confirmed` what they surely do;
`exported` the latest expiry in a handle that left the engine. A reader trusts
`exported`, so the blocks may not go before it, and it is only raised to what the workers
have confirmed: a renewal can cross with the worker's own expiry and be lost. A
release lowers the deadline to `exported`, never below.

A retention whose handle carries a generation word promises no time at all: readers see by the
word whether they read what they were promised. Its `exported` is `NO_EXPIRY`, so that it may be
shortened at will and released in the very step, and its handle stays as it is for its whole life.

An engine that is short of memory gives retentions up by itself: `candidates` tells which there are
and what they are worth, `reclaim` orders their release and has them reported as reclaimed.

The account lives between two threads: vLLM's step loop begins, confirms and ends retentions
and fetches orders; the link to the plane applies directives and makes reports. Building
a report's handles and digests is left to the link.
"""

import json
import math
import threading
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from kvplane.client.names import SessionKey
from kvplane.client.retention import Directive, EndReason, Renew, Report, Retention
from kvplane.client.retention_log import RetentionLog
from kvplane.digest import DigestChain, Medium, chain_of
from kvplane.transfer_params import KEY, TurnMark, encode_proof
from kvplane_connector.block_uses import BlockUses
from kvplane_connector.reclaim import Candidate
from kvplane_connector.worth import Merit, Merits, Standing, Worth, middle_told

# A handle is exported anew once its expiry can be moved by this part of the TTL; readers thus
# find most of a TTL in it, and a plane that renews at every heartbeat costs no report each.
_REFRESH_SHARE = 0.25

# Planes renew at a third of the TTL: what was not renewed for this part of it is not to be kept.
_LAPSED_SHARE = 0.5

# A plane renews all retentions in one frame; the workers take that many in a step.
_ORDERS_PER_STEP = 16

# The expiry in a handle that is read only by those who see for themselves whether it still holds:
# long past on any engine's clock, so everybody else declines.
NO_EXPIRY = 0.0


@dataclass(frozen=True, slots=True)
class RetainedTurn:
    """A finished turn whose blocks stay.

    Attributes:
        retention_id: vLLM's request id.
        mark: Whose turn it is.
        token_ids: The tokens whose KV the blocks hold.
        context: What else shapes the KV of all of them; start of their digest chain.
        block_ids: The blocks, for counting what retentions share.
        block_size: Tokens per block.
        kv_transfer_params: vLLM's handle.
        expiry: When vLLM frees the blocks unless told otherwise.
        has_word: Whether readers see by a generation word if the blocks were given away; the
            handle then says `NO_EXPIRY`, else `expiry`.
        media: What stands behind some of the tokens.

    """

    retention_id: str
    mark: TurnMark
    token_ids: Sequence[int]
    context: bytes
    block_ids: frozenset[int]
    block_size: int
    kv_transfer_params: Mapping[str, Any]
    expiry: float
    has_word: bool = False
    media: Sequence[Medium] = ()

    @property
    def session_key(self) -> SessionKey:
        """The conversation that it belongs to."""
        return SessionKey(
            self.mark.tenant, self.mark.model, self.mark.adapter, self.mark.session_id
        )


@dataclass(frozen=True, slots=True)
class Reclaimable:
    """What there is to give up, and what is about to go already.

    Attributes:
        at_once: Retentions whose blocks may go at any moment.
        later: Those whose blocks were promised until a time; the sooner it is, the less worth.
        leaving_at_once: Released ones of the first kind, for which the workers' word is due.
        leaving_later: Released ones of the second kind.

    """

    at_once: list[Candidate]
    later: list[Candidate]
    leaving_at_once: list[Candidate]
    leaving_later: list[Candidate]


@dataclass(slots=True)
class _Held:
    turn: RetainedTurn
    session: SessionKey
    merit: Merit
    exported: float
    confirmed: float
    ordered: float
    ttl: float
    reads: int = 0
    lease: str = ""
    fencing_token: int = 0
    release: EndReason | None = None
    chain: DigestChain | None = None


class RetentionLedger:
    """The account. Safe to use from the step loop and the link at once.

    Args:
        ttl: Seconds to hold a retention for until the plane says otherwise.
        clamp_ttl: Puts a TTL that the plane orders within the operator's bounds.

    """

    def __init__(self, *, ttl: float, clamp_ttl: Callable[[float], float]) -> None:
        self._ttl = ttl
        self._clamp_ttl = clamp_ttl
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}
        self._orders: dict[str, float] = {}
        self._releases: set[str] = set()
        self._to_export: set[str] = set()
        self._log = RetentionLog()
        self._merits = Merits()
        # Released, and not yet given up by the workers; the second are those that may go at once.
        self._leaving: set[str] = set()
        self._freeing: set[str] = set()
        self._version = 0
        self._uses_of_block = BlockUses()

    @property
    def ttl(self) -> float:
        """Seconds that a new retention is held for."""
        return self._ttl

    def set_ttl(self, ttl: float) -> None:
        """The plane's TTL for new retentions; put within the bounds."""
        self._ttl = self._clamp_ttl(ttl)

    @property
    def retentions(self) -> int:
        """Retentions held."""
        return len(self._held)

    @property
    def retained_blocks(self) -> int:
        """Blocks that retentions hold; shared ones count once."""
        return len(self._uses_of_block)

    # -- Step loop

    def begin(self, turn: RetainedTurn) -> None:
        """A turn finished and its blocks stay until `turn.expiry`."""
        exported = NO_EXPIRY if turn.has_word else turn.expiry
        with self._lock:
            session = turn.session_key
            merit = self._merits.begin(turn.retention_id, session, len(turn.token_ids))
            held = _Held(turn, session, merit, exported, turn.expiry, turn.expiry, self._ttl)
            self._held[turn.retention_id] = held
            self._version += 1
            self._to_export.add(turn.retention_id)
            self._uses_of_block.add(turn.block_ids)

    def take_orders(self) -> Mapping[str, float]:
        """New deadlines for the workers, the longest due first; some of them, if there are many.

        Takes no lock when there are none.
        """
        if not self._orders:
            return {}
        with self._lock:
            if len(self._orders) <= _ORDERS_PER_STEP:
                orders, self._orders = self._orders, {}
                return orders
            names = list(islice(self._orders, _ORDERS_PER_STEP))
            return {name: self._orders.pop(name) for name in names}

    def take_releases(self) -> AbstractSet[str]:
        """Retentions for the workers to free in this step, since the last call. As cheap."""
        if not self._releases:
            return frozenset()
        with self._lock:
            releases, self._releases = self._releases, set()
        return releases

    def may_be_freed_at(self, retention_id: str) -> float | None:
        """From when on the blocks may go; `NO_EXPIRY` for at any moment, None if unknown."""
        held = self._held.get(retention_id)
        return None if held is None else held.exported

    def confirm(self, applied: Mapping[str, float]) -> bool:
        """The workers keep to these deadlines from now on. Returns whether handles changed."""
        changed = False
        with self._lock:
            for name, deadline in applied.items():
                if (held := self._held.get(name)) is None:
                    continue
                held.confirmed = max(deadline, held.exported)
                if held.release is None and self._is_stale(held):
                    self._to_export.add(name)
                    changed = True
        return changed

    def read(self, retention_id: str, reads: int) -> None:
        """A retention was read `reads` times since it began; unknown ones are ignored."""
        with self._lock:
            if (held := self._held.get(retention_id)) is not None:
                held.reads = max(held.reads, reads)
                self._merits.used(held.merit)
                self._log.read(retention_id, held.reads)

    def end(self, retention_id: str, reason: EndReason = EndReason.EXPIRED) -> bool:
        """The workers gave a retention's blocks up; returns False for unknown ones.

        `reason` is reported unless the plane asked for a release with a reason of its own.
        """
        with self._lock:
            if (held := self._held.pop(retention_id, None)) is None:
                return False
            self._orders.pop(retention_id, None)
            self._releases.discard(retention_id)
            self._leaving.discard(retention_id)
            self._freeing.discard(retention_id)
            self._version += 1
            self._to_export.discard(retention_id)
            self._uses_of_block.remove(held.turn.block_ids)
            self._log.end(retention_id, held.release or reason)
            return True

    # -- Short of memory; the step loop's too

    @property
    def is_freeing(self) -> bool:
        """Whether releases are on their way that free blocks in the step that carries them out."""
        return bool(self._freeing)

    @property
    def version(self) -> int:
        """Changes when a retention begins or ends."""
        return self._version

    def candidates(self, now: float, *, in_use: Container[SessionKey]) -> Reclaimable:
        """What could be given up for memory.

        Args:
            now: The time on the engine's clock.
            in_use: Conversations that have a turn on this engine.

        """
        found = Reclaimable([], [], [], [])
        kinds = (found.later, found.at_once, found.leaving_later, found.leaving_at_once)
        with self._lock:
            middle = middle_told(held.merit for held in self._held.values())
            for name, held in self._held.items():
                merit = held.merit
                told = middle if merit.told is None else merit.told
                value = merit.value if told is None else told
                worth = (
                    Worth(self._standing(held, now, in_use), value)
                    if held.turn.has_word
                    else Worth(Standing.KEPT, held.exported)
                )
                kind = kinds[2 * (name in self._leaving) + held.turn.has_word]
                kind.append(Candidate(name, held.turn.block_ids, worth))
        return found

    def reclaim(self, names: Iterable[str]) -> None:
        """Gives retentions up for memory; those that are leaving or gone are ignored."""
        with self._lock:
            for name in names:
                held = self._held.get(name)
                if held is None or held.release is not None:
                    continue
                if not self._merits.is_superseded(name, held.session):
                    self._merits.given_up(held.merit)
                self._release(held, EndReason.RECLAIMED)

    def give_up_all(self) -> bool:
        """Gives everything up, each as soon as it may go. Returns whether nothing is left."""
        if len(self._leaving) < len(self._held):
            with self._lock:
                for held in self._held.values():
                    if held.release is None:
                        self._release(held, EndReason.RECLAIMED)
        return not self._held

    # -- Link to the plane; the reporting half of `kvplane.client.retention.RetentionSource`

    def apply(self, directives: Sequence[Directive], *, sent_at: float) -> None:
        """See `RetentionSource.apply`. What was asked to be released is not renewed again."""
        with self._lock:
            for one in directives:
                held = self._held.get(one.retention_id)
                if held is None or one.fencing_token < held.fencing_token:
                    continue
                held.lease, held.fencing_token = one.lease, one.fencing_token
                if isinstance(one, Renew):
                    # Zero is from a plane that does not say it; what is no number sorts nowhere.
                    told = one.worth
                    held.merit.told = told if math.isfinite(told) and told > 0 else None
                    self._renew(held, one.ttl, sent_at)
                elif held.release is None:
                    # A reason that this version does not know is a release all the same.
                    self._release(held, one.reason or EndReason.RELEASED)

    def full_report(self) -> Report:
        """See `RetentionSource.full_report`."""
        self._export()
        with self._lock:
            held = list(self._held.items())
        for name, one in held:
            # The plane ordered it and needs no report of it, except when it starts anew.
            self._log.renew(
                name,
                deadline=one.confirmed,
                lease=one.lease,
                fencing_token=one.fencing_token,
            )
        return self._log.full_report()

    def changes(self) -> Report:
        """See `RetentionSource.changes`."""
        self._export()
        return self._log.changes()

    def acknowledge(self, report: Report) -> None:
        """See `RetentionSource.acknowledge`."""
        self._log.acknowledge(report)

    # -- Inside

    def _renew(self, held: _Held, ttl: float, sent_at: float) -> None:
        if held.release is not None:
            return
        held.ttl = self._clamp_ttl(ttl)
        deadline = sent_at + held.ttl
        # Earlier than an expiry that is out there it cannot be; later ones are the point.
        if deadline > held.ordered or held.turn.has_word:
            self._order(held, deadline)

    def _release(self, held: _Held, reason: EndReason) -> None:
        held.release = reason
        self._leaving.add(held.turn.retention_id)
        if held.turn.has_word:
            self._orders.pop(held.turn.retention_id, None)
            self._freeing.add(held.turn.retention_id)
            self._releases.add(held.turn.retention_id)
        else:
            self._order(held, held.exported)

    def _standing(self, held: _Held, now: float, in_use: Container[SessionKey]) -> Standing:
        session = held.session
        if session in in_use:
            return Standing.CLAIMED
        if self._merits.is_superseded(held.turn.retention_id, session):
            return Standing.SUPERSEDED
        if now > held.ordered - held.ttl * (1 - _LAPSED_SHARE):
            return Standing.LAPSED
        return Standing.KEPT

    def _order(self, held: _Held, deadline: float) -> None:
        if deadline != held.ordered:
            held.ordered = deadline
            self._orders[held.turn.retention_id] = deadline

    def _is_stale(self, held: _Held) -> bool:
        if held.turn.has_word:
            return False
        return held.confirmed - held.exported >= held.ttl * _REFRESH_SHARE

    def _export(self) -> None:
        """Makes the reports of retentions that began or whose handles are to say a later expiry."""
        with self._lock:
            names, self._to_export = self._to_export, set()
            due = [held for name in names if (held := self._held.get(name)) is not None]
            for held in due:
                if held.release is None and not held.turn.has_word:
                    held.exported = held.confirmed
        for held in due:
            if held.chain is None:
                held.chain = chain_of(held.turn.token_ids, held.turn.context, held.turn.media)
                # Nobody asks for them again, and they are many.
                held.turn = replace(held.turn, token_ids=())
            # Encoded outside the lock; only the link thread changes what it depends on.
            encoded = _encode_handle(held.turn, held.chain, held.exported)
            with self._lock:
                if held.turn.retention_id in self._held:
                    self._log.put(_retention(held, held.chain, encoded))


def _encode_handle(turn: RetainedTurn, chain: DigestChain, expiry: float) -> bytes:
    params = {
        **turn.kv_transfer_params,
        "remote_blocks_expiry_time": expiry,
        KEY: {**encode_proof(chain), "block_size": turn.block_size},
    }
    return json.dumps(params, separators=(",", ":")).encode()


def _retention(held: _Held, chain: DigestChain, encoded: bytes) -> Retention:
    mark = held.turn.mark
    return Retention(
        retention_id=held.turn.retention_id,
        session_key=held.session,
        tokens=chain.tokens,
        blocks=len(held.turn.block_ids),
        kv_transfer_params=encoded,
        deadline=held.confirmed,
        digests=chain,
        decision_id=mark.decision_id,
        message_digest=mark.message_digest,
        lease=held.lease,
        fencing_token=held.fencing_token,
        reads=held.reads,
    )
