"""A step loop as vLLM's, as far as memory goes: requests take blocks of a pool, run and finish.

It calls `MemoryPressure` and the ledger as the connector's scheduler does in vLLM, and frees what
was released at the end of the step that carries the release.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvplane.transfer_params import TurnMark
from kvplane_connector.kv_blocks import CacheGroup, KvBlocks
from kvplane_connector.pressure import MemoryPressure
from kvplane_connector.retentions import RetainedTurn, RetentionLedger
from tests.support.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvplane.client.retention import EndReason

BLOCK = 16


@dataclass(slots=True, eq=False)
class Block:
    """A block of the pool."""

    block_id: int
    ref_cnt: int = 0


@dataclass(slots=True, eq=False)
class Request:
    """A request; `block_hashes` name what its full blocks hold, for the prefix cache."""

    request_id: str
    num_tokens: int
    session: str = ""
    reply: int = 1
    num_computed_tokens: int = 0
    block_hashes: list[str] = field(default_factory=list[str])
    blocks: list[Block] = field(default_factory=list[Block])
    steps_waited: int = 0


class Pool:
    """As much of vLLM's block pool as the connector looks at."""

    def __init__(self, blocks: int) -> None:
        self.num_gpu_blocks = blocks + 1
        self.blocks = [Block(number) for number in range(blocks + 1)]
        self._free = self.blocks[1:]
        self.cached: dict[str, Block] = {}

    def get_num_free_blocks(self) -> int:
        return len(self._free)

    def get_cached_block(
        self, block_hash: str, kv_cache_group_ids: list[int]
    ) -> list[Block] | None:
        found = self.cached.get(block_hash)
        return None if found is None else [found] * len(kv_cache_group_ids)

    def touch(self, block: Block) -> None:
        if block.ref_cnt == 0:
            self._free.remove(block)
        block.ref_cnt += 1

    def take(self, count: int) -> list[Block] | None:
        if count > len(self._free):
            return None
        taken, self._free = self._free[:count], self._free[count:]
        for block in taken:
            for name in [name for name, one in self.cached.items() if one is block]:
                del self.cached[name]
            block.ref_cnt = 1
        return taken

    def give_back(self, blocks: list[Block]) -> None:
        for block in blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                self._free.append(block)


class StepLoop:
    """The engine: `step` is one step; finished requests with a session are retained.

    Args:
        blocks: Size of the pool.
        has_words: Whether retentions have a generation word.
        asks_before_preempting: Whether it asks the connector before it stops a request, as vLLM
            does since 0.32.
        token_budget: Prompt tokens that are computed in a step.

    """

    def __init__(
        self,
        blocks: int,
        *,
        has_words: bool = True,
        asks_before_preempting: bool = True,
        token_budget: int = 10_000,
        ttl: float = 30.0,
    ) -> None:
        self.clock = FakeClock()
        self.pool = Pool(blocks)
        self.blocks = KvBlocks([CacheGroup(BLOCK)])
        self.blocks.bind(self.pool)
        self.ledger = RetentionLedger(ttl=ttl, clamp_ttl=lambda ttl: ttl)
        self.pressure = MemoryPressure(ledger=self.ledger, blocks=self.blocks, clock=self.clock)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.retained: dict[str, Request] = {}
        self.preempted: list[str] = []
        self.refuses: Callable[[Request], bool] = lambda _: False
        self.loses_releases = False
        self.ended: dict[str, EndReason] = {}
        self._has_words = has_words
        self._asks = asks_before_preempting
        self._budget = token_budget
        self._deadlines: dict[str, float] = {}

    def add(self, name: str, tokens: int, *, session: str = "", reply: int = 1) -> Request:
        """A request comes in; its hashes are those of its session's turns."""
        hashes = [f"{session or name}:{number}" for number in range(tokens // BLOCK)]
        request = Request(name, tokens, session, reply, block_hashes=hashes)
        self.pressure.arrived(name, TurnMark("t", "m", "", session) if session else None)
        self.waiting.append(request)
        return request

    def finish_all(self) -> None:
        """Steps until nothing runs or waits."""
        while self.waiting or self.running:
            self.step()

    def retain(self, *names: str, tokens: int) -> None:
        """Turns of as many sessions, one after the other, each retained."""
        for name in names:
            self.add(name, tokens, session=f"session of {name}")
            self.finish_all()

    def step(self) -> None:
        """One step: running requests first, then waiting ones in order, then what was ordered."""
        scheduled: dict[str, int] = {}
        stopped = self._run(scheduled)
        while self.waiting and not stopped:
            request = self.waiting[0]
            hits = self._hits(request)
            self.pressure.asked(request, len(hits) * BLOCK)
            needed = -(-request.num_tokens // BLOCK) - len(hits)
            reused = sum(block.ref_cnt == 0 for block in hits)
            if self.refuses(request) or needed + reused > self.pool.get_num_free_blocks():
                request.steps_waited += 1
                break
            for block in hits:
                self.pool.touch(block)
            # All has to fit; only what this step computes is taken.
            scheduled[request.request_id] = min(
                request.num_tokens - len(hits) * BLOCK, self._budget
            )
            request.num_computed_tokens = len(hits) * BLOCK
            first = -(-(request.num_computed_tokens + scheduled[request.request_id]) // BLOCK)
            request.blocks = hits + (self.pool.take(first - len(hits)) or [])
            self.pool.cached.update(zip(request.block_hashes, request.blocks, strict=False))
            self.waiting.popleft()
            self.running.append(request)
            self.pressure.placed(request)
        self.pressure.relieve(scheduled)
        deadlines, releases = self.ledger.take_orders(), self.ledger.take_releases()
        self._deadlines.update(deadlines)
        self.ledger.confirm(deadlines)
        for request in list(self.running):
            request.num_computed_tokens += scheduled.get(request.request_id, 0)
            if request.num_computed_tokens >= request.num_tokens:
                request.num_tokens += 1
                request.reply -= 1
                if request.reply <= 0:
                    self._finish(request)
        due = {name for name, at in self._deadlines.items() if at <= self.clock.now()}
        self._free(due if self.loses_releases else due | releases)
        report = self.ledger.changes()
        self.ledger.acknowledge(report)
        self.ended.update(report.ended)

    def agrees(self) -> bool:
        """Whether the ledger's count of retained blocks is the pool's."""
        running = {block.block_id for one in self.running for block in one.blocks}
        retained = {block.block_id for one in self.retained.values() for block in one.blocks}
        used = self.blocks.total - self.blocks.free
        return len(retained) == self.ledger.retained_blocks and used == len(running | retained)

    def _run(self, scheduled: dict[str, int]) -> bool:
        for request in list(self.running):
            if request not in self.running:
                continue
            tokens = min(request.num_tokens - request.num_computed_tokens, self._budget)
            held = len(request.blocks) * BLOCK
            taken: list[Block] | None = []
            more = -(-(request.num_computed_tokens + tokens - held) // BLOCK)
            while more > 0 and (taken := self.pool.take(more)) is None:
                if self._asks and self.pressure.spares():
                    return False
                last = self.running.pop()
                self.preempted.append(last.request_id)
                self.pool.give_back(last.blocks)
                last.blocks, last.num_computed_tokens = [], 0
                self.waiting.appendleft(last)
                if last is request:
                    return True
            request.blocks += taken or []
            scheduled[request.request_id] = tokens
        return False

    def _hits(self, request: Request) -> list[Block]:
        hits: list[Block] = []
        # At least one token is computed.
        for name in request.block_hashes[: (request.num_tokens - 1) // BLOCK]:
            found = self.pool.get_cached_block(name, [0])
            if found is None:
                break
            hits.append(found[0])
        return hits

    def _finish(self, request: Request) -> None:
        self.running.remove(request)
        self.pressure.left(request.request_id)
        if not request.session:
            self.pool.give_back(request.blocks)
            return
        name, expiry = request.request_id, self.clock.now() + self.ledger.ttl
        self.retained[name] = request
        self._deadlines[name] = expiry
        self.ledger.begin(
            RetainedTurn(
                retention_id=name,
                mark=TurnMark("t", "m", "", request.session),
                token_ids=list(range(request.num_computed_tokens)),
                context=b"",
                block_ids=frozenset(block.block_id for block in request.blocks),
                block_size=BLOCK,
                kv_transfer_params={},
                expiry=expiry,
                has_word=self._has_words,
            )
        )

    def _free(self, names: set[str]) -> None:
        gone = [name for name in names if name in self.retained]
        if gone:
            self.pressure.came_back()
        for name in gone:
            del self._deadlines[name]
            self.ledger.end(name)
            self.pool.give_back(self.retained.pop(name).blocks)
