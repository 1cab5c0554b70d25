"""What each step computes: which requests run, in which order, and how much of each.

First come, first served: those that run go first, newcomers join while tokens, blocks and
places last, and the one that came last makes room where blocks run out.
"""

from collections import deque
from dataclasses import dataclass, field

from kvplane_services.sim.blocks import BlockPool, OutOfBlocks
from kvplane_services.sim.config import EngineShape
from kvplane_services.sim.counters import Counters
from kvplane_services.sim.placing import grow, place, vacate
from kvplane_services.sim.request import Request, RequestState
from kvplane_services.sim.transfers import RemoteRead


@dataclass(slots=True)
class Batch:
    """Requests with the number of tokens to compute of each, and reads that begin."""

    entries: list[tuple[Request, int]] = field(default_factory=list[tuple[Request, int]])
    reads: list[tuple[Request, RemoteRead]] = field(
        default_factory=list[tuple[Request, RemoteRead]]
    )

    @property
    def prefill_tokens(self) -> int:
        """Tokens of prompts."""
        return sum(count for request, count in self.entries if not _decodes(request))

    @property
    def decodes(self) -> bool:
        """Whether any request generates."""
        return any(_decodes(request) for request, _ in self.entries)


class Batcher:
    """Requests that wait, read and run.

    Args:
        shape: Memory and limits.
        stock: Whether the connector is the stock one.
        pool: The blocks.
        counters: Told of preemptions.

    Attributes:
        waiting: Wait for blocks or a place, first come first.
        transferring: Wait for a transfer.
        running: Are computed, first come first.
        lacks_blocks: Whether the last step ended at a request for which too few were free.

    """

    def __init__(
        self, *, shape: EngineShape, stock: bool, pool: BlockPool, counters: Counters
    ) -> None:
        self._shape = shape
        self._stock = stock
        self._pool = pool
        self._counters = counters
        self.waiting: deque[Request] = deque()
        self.transferring: set[Request] = set()
        self.running: list[Request] = []
        self.lacks_blocks = False

    def next(self) -> Batch:
        """Decides the next step; it is empty if nothing can run."""
        budget = self._shape.max_batched_tokens
        batch = Batch()
        short = False
        for request in list(self.running):
            count = _left(request, budget)
            while request.state is RequestState.RUNNING and count and not self._grow(request):
                short = True
                self._preempt(self.running[-1])
            if request.state is RequestState.RUNNING and count:
                batch.entries.append((request, count))
                budget -= count
        batch.entries = [entry for entry in batch.entries if entry[0].state is RequestState.RUNNING]
        while self.waiting and budget and not short and self._has_place():
            request = self.waiting.popleft()
            try:
                read = self._admit(request)
            except OutOfBlocks:
                self.waiting.appendleft(request)
                short = True
                break
            if read is not None:
                batch.reads.append((request, read))
            if request.state is RequestState.RUNNING:
                count = _left(request, budget)
                batch.entries.append((request, count))
                budget -= count
        self.lacks_blocks = short
        return batch

    def wait_again(self, request: Request) -> None:
        """Puts a request that does not read or run any more before all that wait."""
        request.state = RequestState.WAITING
        self.waiting.appendleft(request)

    def leave(self, request: Request) -> None:
        """Takes a request that waits or runs out."""
        if request.state is RequestState.RUNNING:
            self.running.remove(request)
        elif request.state is RequestState.WAITING:
            self.waiting.remove(request)

    def _has_place(self) -> bool:
        return len(self.running) < self._shape.max_running

    def _admit(self, request: Request) -> RemoteRead | None:
        """Gives a request its blocks, and lets it run or read."""
        read: RemoteRead | None = None
        if request.block_ids:
            # Its read is done; what is left to compute may need more blocks.
            grow(request, pool=self._pool)
        else:
            read = place(request, pool=self._pool, stock=self._stock)
        if read is not None and read.block_ids:
            request.state = RequestState.TRANSFERRING
            self.transferring.add(request)
        else:
            request.state = RequestState.RUNNING
            self.running.append(request)
        return read

    def _grow(self, request: Request) -> bool:
        try:
            grow(request, pool=self._pool)
        except OutOfBlocks:
            return False
        return True

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        vacate(request, pool=self._pool)
        request.preempted = True
        self.wait_again(request)
        self._counters.preempted()


def _left(request: Request, budget: int) -> int:
    return min(len(request.tokens) - request.computed, budget)


def _decodes(request: Request) -> bool:
    return request.computed == len(request.tokens) - 1 >= len(request.prompt)
