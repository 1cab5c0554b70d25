"""The simulated engine's step loop: prefill, decode and transfers.

Shaped like vLLM's: first come first served, chunked prefill beside decode in one step, a
request waits while blocks are short, a running one that cannot grow is preempted and computed
again. What a step computes is real (computing.py); only the time that it takes is made up.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from kvplane_services.clock import Clock
from kvplane_services.sim.batching import Batcher
from kvplane_services.sim.blocks import BlockPool
from kvplane_services.sim.computing import Sampled, compute, sample
from kvplane_services.sim.config import ConnectorRules, EngineShape, EngineSpeed
from kvplane_services.sim.counters import Counters
from kvplane_services.sim.keeping import Keeper
from kvplane_services.sim.pace import Pace
from kvplane_services.sim.placing import vacate
from kvplane_services.sim.reading import Reader
from kvplane_services.sim.request import FinishReason, Output, Request, RequestState
from kvplane_services.sim.retentions import RetentionTable
from kvplane_services.sim.transfers import RemoteRead, peer_to_tell

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
        self._batcher = Batcher(shape=shape, stock=rules.stock, pool=pool, counters=counters)
        self._arrived: dict[Request, float] = {}
        self._work = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None

    @property
    def running(self) -> int:
        """Requests now running."""
        return len(self._batcher.running)

    @property
    def waiting(self) -> int:
        """Requests waiting, for blocks or for a transfer."""
        return len(self._batcher.waiting) + len(self._batcher.transferring)

    def add(self, request: Request) -> None:
        """Takes a request; news of it come through its `outputs`."""
        self._arrived[request] = self._clock.now()
        self._batcher.waiting.append(request)
        self._work.set()

    def abort(self, request: Request) -> None:
        """Ends a request whose client is gone. Nothing of it is retained. Idempotent."""
        if request.state is RequestState.FINISHED:
            return
        owner = None if request.read_tried else peer_to_tell(request.params)
        if owner is not None and self._tasks is not None:
            self._tasks.create_task(self._reader.tell(*owner))
        self._batcher.leave(request)
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
        batch = self._batcher.next()
        for request, read in batch.reads:
            self._begin(request, read)
        if not batch.entries:
            return False
        seconds = self._speed.step(prefill_tokens=batch.prefill_tokens, decodes=batch.decodes)
        await self._clock.sleep(seconds * self._pace.factor)
        await self._pace.thawed(self._clock)
        for request, count in batch.entries:
            # Its client may have gone meanwhile.
            if request.state is RequestState.RUNNING:
                self._advance(request, count)
        return True

    def _begin(self, request: Request, read: RemoteRead) -> None:
        if self._tasks is None:
            raise RuntimeError("reads need a scheduler that runs")
        if read.block_ids:
            self._tasks.create_task(self._load(request, read))
        else:
            self._tasks.create_task(self._reader.tell(read.peer, read.request_id))

    async def _load(self, request: Request, read: RemoteRead) -> None:
        failure = await self._reader.load(request, read)
        self._batcher.transferring.discard(request)
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
        self._batcher.wait_again(request)
        self._work.set()

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
        self._batcher.leave(request)
        params: dict[str, Any] | None = None
        if sampled.stop_reason is None:
            # vLLM finds stop texts outside its engine core, which then aborts the request: a
            # reply that ended so leaves nothing behind.
            params = self._keeper.keep(request, lacks_blocks=self._batcher.lacks_blocks)
        if params is None:
            self._free(request)
        self._end(
            request, reason, token=sampled.token, stop_reason=sampled.stop_reason, params=params
        )

    def _free(self, request: Request) -> None:
        vacate(request, pool=self._pool)
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
            await self._reader.keep_staged((*self._batcher.waiting, *self._batcher.transferring))
