"""Sees that requests are short of KV blocks, and has the cheapest retentions given up for them.

vLLM asks the connector about each waiting request before it looks for blocks, and tells it of those
that got some. So at the end of a step's scheduling it is known which request got none, what it
needs, and what is free. What is missing is ordered from the workers with that very step; it is
back when the step is over, and the request gets its blocks in the next one. Requests that run are
seen to in the same way, before they need what is not there.

A retention without a generation word goes no sooner than the expiry in its handle. It is
asked for where others are not enough, and comes back then.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

from kvplane.client.clock import Clock
from kvplane.client.names import SessionKey
from kvplane.transfer_params import TurnMark
from kvplane_connector.kv_blocks import KvBlocks
from kvplane_connector.reclaim import choose
from kvplane_connector.retentions import RetentionLedger

_log = logging.getLogger(__name__)

# Part of the pool that is freed beyond what is needed, so that small needs do not come in a row.
_HEADROOM = 0.03
# Steps for which a request may get no blocks although enough seem free. vLLM may reserve blocks
# for reasons of its own; from then on more and more are freed, by this part of the pool, up to
# the most that it is believed to reserve: who gets none with that much free lacks something else.
_PATIENCE = 8
_MORE = 1 / 32
_MOST_RESERVED = 1 / 8
# Steps within which what was released is back, or never: it then counts no longer as on its way.
_ON_THE_WAY = 64
# Seconds until a choice that found too little is made again if nothing seems to have changed.
_AGAIN = 1.0


class MemoryPressure:
    """Decides in each step whether retentions go, and which. Belongs to the step loop.

    Args:
        ledger: The account of retentions.
        blocks: The pool.
        clock: The engine's.

    """

    def __init__(self, *, ledger: RetentionLedger, blocks: KvBlocks, clock: Clock) -> None:
        self._ledger = ledger
        self._blocks = blocks
        self._clock = clock
        self._sessions: dict[str, SessionKey] = {}
        self._in_use: Counter[SessionKey] = Counter()
        # Requests that have blocks; of those in `_filling` the prompt is not computed yet.
        self._placed: dict[str, Any] = {}
        self._filling: set[str] = set()
        # The request that vLLM tries to place in this step, and what it found of it in its cache.
        self._asked: tuple[Any, int] | None = None
        self._unplaced = ""
        self._refused = 0
        self._steps_leaving = 0
        # Choices that found too little, by whether a part was of use: how many blocks they were
        # for, in which state of the ledger, and until when to believe that.
        self._fruitless: dict[bool, tuple[int, int, float]] = {}

    # -- What happens to requests

    def arrived(self, request_id: str, mark: TurnMark | None) -> None:
        """A request came in."""
        if mark is not None and mark.session_id:
            key = SessionKey(mark.tenant, mark.model, mark.adapter, mark.session_id)
            self._sessions[request_id] = key
            self._in_use[key] += 1

    def asked(self, request: Any, tokens: int) -> None:
        """A request is the next to get blocks; vLLM found so many of its tokens in its cache."""
        self._asked = (request, tokens)
        self._forget(request.request_id)

    def placed(self, request: Any) -> None:
        """A request got its blocks."""
        self._asked = None
        self._placed[request.request_id] = request
        self._filling.add(request.request_id)

    def left(self, request_id: str) -> None:
        """A request finished, or was given up."""
        self._forget(request_id)
        self._fruitless.clear()
        if request_id == self._unplaced:
            self._unplaced = ""
        if (key := self._sessions.pop(request_id, None)) is not None:
            self._in_use[key] -= 1
            if not self._in_use[key]:
                del self._in_use[key]

    def came_back(self) -> None:
        """The workers gave retentions up."""
        self._steps_leaving = 0

    @property
    def lacks_blocks(self) -> bool:
        """Whether the last step ended at a request for which too few blocks were free."""
        return bool(self._unplaced)

    # -- Each step

    def relieve(self, scheduled: Mapping[str, int]) -> None:
        """A step was put together: gives up what is needed for the next one.

        Args:
            scheduled: Tokens of each request in the step.

        """
        asked, self._asked = self._asked, None
        last, self._unplaced = self._unplaced, asked[0].request_id if asked is not None else ""
        if not self._ledger.retentions:
            return
        self._steps_leaving += self._ledger.is_freeing
        free = self._blocks.free
        if asked is None and not self._filling and free >= self._most_growth:
            return
        growth = self._growth(scheduled)
        if asked is not None:
            request, tokens = asked
            hits = self._blocks.held_hits(request, tokens)
            wanted = self._blocks.taken_by(request.num_tokens + 1) - len(hits)
            short = growth + wanted + self._blocks.kept_free - free
            short = self._or_more(short, again=request.request_id == last)
            partly = not self._placed or self._refused > 0
            if short <= 0 or self._reclaim(short, partly=partly, hits=hits):
                return
            # It waits for others to finish, which are not to wait as well.
        if growth > free:
            self._reclaim(growth - free, partly=True)

    def spares(self) -> bool:
        """A request that runs found no block; whether some come back, so that it need not stop."""
        if not self._ledger.is_freeing and self._ledger.retentions:
            self._reclaim(max(1, self._most_growth), partly=True)
        return self._ledger.is_freeing and self._steps_leaving <= _ON_THE_WAY

    # -- Inside

    def _forget(self, request_id: str) -> None:
        self._placed.pop(request_id, None)
        self._filling.discard(request_id)

    @property
    def _most_growth(self) -> int:
        """Blocks that requests whose prompts are computed begin in a step at most."""
        return len(self._placed) * len(self._blocks.groups)

    def _growth(self, scheduled: Mapping[str, int]) -> int:
        """Blocks that requests which have some take in the next two steps.

        Two, because the next one may be put together before this one is over.
        """
        growth, taken_by, sizes = 0, self._blocks.taken_by, self._blocks.growing
        for name, request in self._placed.items():
            done = request.num_computed_tokens + scheduled.get(name, 0)
            if name in self._filling:
                growth += taken_by(max(request.num_tokens, done + 1) + 1) - taken_by(done)
                if done + 1 >= request.num_tokens:
                    self._filling.discard(name)
                continue
            for size in sizes:
                # One of the next two tokens is the first of a block.
                growth += done % size == 0 or done % size == size - 1
        return growth

    def _or_more(self, short: int, *, again: bool) -> int:
        """Blocks to free: what is missing, or more where vLLM refused what seemed enough."""
        if short > 0 or not again:
            self._refused = 0
        elif not self._ledger.is_freeing:
            self._refused += 1
            more = round((self._refused - _PATIENCE) * _MORE * self._blocks.total)
            short = min(more, short + round(_MOST_RESERVED * self._blocks.total))
        return short

    def _reclaim(self, short: int, *, partly: bool, hits: frozenset[int] = frozenset()) -> bool:
        """Gives retentions up for so many blocks; returns whether as many come back.

        Args:
            short: Blocks that are missing.
            partly: Whether fewer are of use, too.
            hits: Blocks that the request would hold as well.

        """
        now = self._clock.now()
        if not partly and short > self._ledger.retained_blocks:
            return False
        if self._is_fruitless(short, partly=partly, now=now):
            return False
        found = self._ledger.candidates(now, in_use=self._in_use)
        coming = found.leaving_at_once if self._steps_leaving <= _ON_THE_WAY else []

        held_by = self._blocks.holders

        def holders(block: int) -> int:
            return held_by(block) + (block in hits)

        headroom = round(self._blocks.total * _HEADROOM)
        choice = choose(
            found.at_once, leaving=coming, holders=holders, needed=short, headroom=headroom
        )
        names: tuple[str, ...] = choice.names if choice.enough or partly else ()
        enough = choice.enough
        if not enough:
            # What can go at once is held back until the rest is there.
            later = choose(
                found.later,
                leaving=[*coming, *found.leaving_later, *found.at_once],
                holders=holders,
                needed=short,
            )
            enough = later.enough
            if enough or partly:
                names += later.names
        if names:
            _log.info("Short of %d KV blocks: gives %d retentions up.", short, len(names))
            if not self._ledger.is_freeing:
                self._steps_leaving = 0
            self._ledger.reclaim(names)
        elif not enough:
            self._fruitless[partly] = (short, self._ledger.version, now + _AGAIN)
        return enough

    def _is_fruitless(self, short: int, *, partly: bool, now: float) -> bool:
        """Whether a choice was made of the same retentions, and found too little."""
        if (found := self._fruitless.get(partly)) is None:
            return False
        least, version, until = found
        return (partly or short >= least) and version == self._ledger.version and now < until
