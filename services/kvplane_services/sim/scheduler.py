"""The simulated engine's step loop: queueing, prefill, decode and transfers.

Shaped like vLLM's: first come first served, chunked prefill beside decode in one step, a
request waits while blocks are short, a running one that cannot grow is preempted and computed
again. What a step computes is real (computing.py); only the time that it takes is made up.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Mapping
from typing import Any

from kvplane_services.clock import Clock
from kvplane_services.sim.blocks import BlockPool, OutOfBlocks
from kvplane_services.sim.computing import Sampled, compute, sample
from kvplane_services.sim.config import ConnectorRules, EngineShape, EngineSpeed
from kvplane_services.sim.counters import Counters
from kvplane_services.sim.keeping import Keeper
from kvplane_services.sim.pace import Pace
from kvplane_services.sim.reading import Reader
from kvplane_services.sim.request import (
    FinishReason,
    Output,
    PromptSources,
    Request,
    RequestState,
)
from kvplane_services.sim.retentions import RetentionTable
from kvplane_services.sim.transfers import RemoteRead, peer_to_tell, plan_read

# How often an engine looks for retentions that ran out.
_SWEEP_SECONDS = 0.02


class Scheduler:
    """One engine's requests and blocks.

    Args:
        shape: Memory and limits.
        speed: How long steps take.
        rules: How the connector behaves.
        pool: The blocks.
        retentions: What outlives its request.
        keeper: Decides what does.
        reader: Reads blocks of other engines.
        counters: Told of everything.
        clock: Time.
        pace: What faults do to it.

    """

    def __init__(
        self,
        *,
        shape: EngineShape,
        speed: EngineSpeed,
        rules: ConnectorRules,
        pool: BlockPool,
        retentions: RetentionTable,
        keeper: Keeper,
        reader: Reader,
        counters: Counters,
        clock: Clock,
        pace: Pace,
    ) -> None:
        self._shape = shape
        self._speed = speed
        self._rules = rules
        self._pool = pool
        self._retentions = retentions
        self._keeper = keeper
        self._reader = reader
        self._counters = counters
        self._clock = clock
        self._pace = pace
        self._waiting: deque[Request] = deque()
        self._transferring: set[Request] = set()
        self._running: list[Request] = []
        self._arrived: dict[Request, float] = {}
        self._work = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None

    @property
    def running(self) -> int:
        """Requests now running."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests waiting, for blocks or for a transfer."""
        return len(self._waiting) + len(self._transferring)

    def add(self, request: Request) -> None:
        """Takes a request; news of it come through its `outputs`."""
        self._arrived[request] = self._clock.now()
        self._waiting.append(request)
        self._work.set()

    def abort(self, request: Request) -> None:
        """Ends a request whose client is gone. Nothing of it is retained. Idempotent."""
        if request.state is RequestState.FINISHED:
            return
        owner = None if request.read_tried else peer_to_tell(request.params)
        if owner is not None and self._tasks is not None:
            self._tasks.create_task(self._reader.tell(*owner))
        self._leave(request)
        if request.state is not RequestState.TRANSFERRING:
            self._free(request)
        self._end(request, FinishReason.ABORT)

    def wake(self) -> None:
        """Blocks came free: lets waiting requests try again."""
        self._work.set()

    async def run(self) -> None:
        """Runs the engine until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._sweep_forever())
            tasks.create_task(self._keep_staged_forever())
            while True:
                await self._pace.thawed(self._clock)
                if not await self.step():
                    self._work.clear()
                    await self._work.wait()

    async def step(self) -> bool:
        """One engine step; False if there was nothing that could run."""
        self._sweep()
        batch = self._schedule()
        if not batch:
            return False
        prefill = sum(count for request, count in batch if not _decodes(request))
        decodes = any(_decodes(request) for request, _ in batch)
        seconds = self._speed.step(prefill_tokens=prefill, decodes=decodes)
        await self._clock.sleep(seconds * self._pace.factor)
        await self._pace.thawed(self._clock)
        for request, count in batch:
            # Its client may have gone meanwhile.
            if request.state is RequestState.RUNNING:
                self._advance(request, count)
        return True

    def _schedule(self) -> list[tuple[Request, int]]:
        budget = self._shape.max_batched_tokens
        batch: list[tuple[Request, int]] = []
        short = False
        for request in list(self._running):
            count = min(len(request.tokens) - request.computed, budget)
            while request.state is RequestState.RUNNING and count and not self._grow(request):
                short = True
                self._preempt(self._running[-1])
            if request.state is RequestState.RUNNING and count:
                batch.append((request, count))
                budget -= count
        batch = [entry for entry in batch if entry[0].state is RequestState.RUNNING]
        while self._waiting and budget and not short and self.running < self._shape.max_running:
            request = self._waiting.popleft()
            try:
                self._admit(request)
            except OutOfBlocks:
                self._waiting.appendleft(request)
                break
            if request.state is RequestState.RUNNING:
                count = min(len(request.tokens) - request.computed, budget)
                batch.append((request, count))
                budget -= count
        return batch

    def _admit(self, request: Request) -> None:
        """Gives a request its blocks, and lets it run or read."""
        needed = -(-len(request.tokens) // self._pool.block_size)
        read: RemoteRead | None = None
        if request.block_ids:
            # Its read is done; what is left to compute may need more blocks.
            request.block_ids += self._pool.take(max(0, needed - len(request.block_ids)))
        else:
            read = self._place(request, needed)
        if read is not None and read.block_ids:
            request.state = RequestState.TRANSFERRING
            self._transferring.add(request)
            self._spawn(self._load(request, read))
            return
        if read is not None:
            self._spawn(self._reader.tell(read.peer, read.request_id))
        request.state = RequestState.RUNNING
        self._running.append(request)

    def _place(self, request: Request, needed: int) -> RemoteRead | None:
        pool = self._pool
        shared = pool.find(request.tokens, request.context)
        cached = external = len(shared) * pool.block_size
        read: RemoteRead | None = None
        if request.params and not request.read_tried:
            read = plan_read(
                request,
                cached_tokens=cached,
                block_size=pool.block_size,
                stock=self._rules.stock,
            )
        if read is not None and read.block_ids:
            needed = -(-read.tokens // pool.block_size)
            external = read.tokens
        request.block_ids = pool.take(needed - len(shared), shared=shared)
        request.computed = cached
        request.read_tried = request.read_tried or read is not None
        if not request.preempted:
            prompt = len(request.prompt)
            request.sources = PromptSources(prompt - external, cached, external - cached)
        return read

    async def _load(self, request: Request, read: RemoteRead) -> None:
        failure = await self._reader.load(request, read)
        self._transferring.discard(request)
        if request.state is RequestState.FINISHED:
            # Aborted meanwhile. Its blocks could not be given away while they were written to.
            self._free(request)
            return
        if failure:
            self._free(request)
            if self._rules.stock:
                self._end(request, FinishReason.ERROR, error=f"KV load failed: {failure}")
                return
        else:
            self._pool.remember(request.block_ids, request.tokens[: read.tokens], request.context)
            # The last token is computed in any case, to sample the next from.
            request.computed = min(read.tokens, len(request.tokens) - 1)
        request.state = RequestState.WAITING
        self._waiting.appendleft(request)
        self._work.set()

    def _grow(self, request: Request) -> bool:
        needed = -(-len(request.tokens) // self._pool.block_size) - len(request.block_ids)
        try:
            request.block_ids += self._pool.take(max(0, needed))
        except OutOfBlocks:
            return False
        return True

    def _preempt(self, request: Request) -> None:
        self._running.remove(request)
        self._free(request)
        request.preempted = True
        request.state = RequestState.WAITING
        self._waiting.appendleft(request)
        self._counters.preempted()

    def _advance(self, request: Request, count: int) -> None:
        if not compute(request, count, pool=self._pool, seed=self._shape.seed):
            return
        if not request.output_length:
            if request.sources is not None:
                self._counters.placed(request.sources)
            self._counters.first_token(self._clock.now() - self._arrived[request])
        sampled = sample(request, max_model_len=self._shape.max_model_len)
        self._counters.generated()
        if sampled.finish_reason is None:
            request.outputs.put_nowait(Output(token=sampled.token))
        else:
            self._finish(request, sampled, sampled.finish_reason)

    def _finish(self, request: Request, sampled: Sampled, reason: FinishReason) -> None:
        self._leave(request)
        params: dict[str, Any] | None = None
        if sampled.stop_reason is None:
            # vLLM finds stop texts outside its engine core, which then aborts the request: a
            # reply that ended so leaves nothing behind.
            params = self._keeper.keep(request)
        if params is None:
            self._free(request)
        self._end(
            request, reason, token=sampled.token, stop_reason=sampled.stop_reason, params=params
        )

    def _leave(self, request: Request) -> None:
        if request.state is RequestState.RUNNING:
            self._running.remove(request)
        elif request.state is RequestState.WAITING:
            self._waiting.remove(request)

    def _free(self, request: Request) -> None:
        self._pool.release(request.block_ids)
        request.block_ids = []
        request.computed = 0
        request.attention = None
        self._work.set()

    def _end(
        self,
        request: Request,
        reason: FinishReason,
        *,
        token: int | None = None,
        stop_reason: str | None = None,
        params: Mapping[str, Any] | None = None,
        error: str = "",
    ) -> None:
        request.state = RequestState.FINISHED
        self._arrived.pop(request, None)
        self._counters.finished(reason)
        request.outputs.put_nowait(
            Output(
                token=token,
                finish_reason=reason,
                stop_reason=stop_reason,
                params=params,
                error=error,
            )
        )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._tasks is None:
            raise RuntimeError("reads need a scheduler that runs")
        self._tasks.create_task(work)

    def _sweep(self) -> None:
        for _ in self._retentions.sweep(self._clock.now()):
            self._counters.expired()

    async def _sweep_forever(self) -> None:
        while True:
            await self._clock.sleep(_SWEEP_SECONDS)
            await self._pace.thawed(self._clock)
            self._sweep()

    async def _keep_staged_forever(self) -> None:
        """Decode legs that wait keep their prefill engine's blocks alive, as vLLM's heartbeats."""
        while True:
            await self._clock.sleep(self._rules.staged_ttl / 6)
            await self._pace.thawed(self._clock)
            await self._reader.keep_staged((*self._waiting, *self._transferring))


def _decodes(request: Request) -> bool:
    return request.computed == len(request.tokens) - 1 >= len(request.prompt)
