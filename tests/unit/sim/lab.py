"""Simulated engines without sockets, on virtual time."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Self

from kvplane.digest import context_of
from kvplane.transfer_params import KEY, TurnMark, encode_proof
from kvplane_services.sim.blocks import BlockPool
from kvplane_services.sim.config import ConnectorRules, EngineShape, EngineSpeed
from kvplane_services.sim.counters import Counters, Gauges
from kvplane_services.sim.keeping import Keeper
from kvplane_services.sim.pace import Pace
from kvplane_services.sim.reading import Reader, ReadFailed
from kvplane_services.sim.request import Output, Request, Sampling
from kvplane_services.sim.retentions import Retention, RetentionTable
from kvplane_services.sim.scheduler import Scheduler
from kvplane_services.sim.transfers import Peer, RemoteRead
from tests.support.clock import FakeClock

MARK = TurnMark("tenant", "model", "", "session")
SPEED = EngineSpeed(
    prefill_tokens_per_s=1000.0,
    decode_ms_per_token=10.0,
    transfer_ms=100.0,
    transfer_us_per_descriptor=0.0,
    transfer_tokens_per_s=1e9,
)


@dataclass
class Lab:
    """Virtual time and the engines in it."""

    clock: FakeClock = field(default_factory=FakeClock)
    engines: "dict[str, LabEngine]" = field(default_factory=dict)

    def engine(
        self, name: str, *, shape: EngineShape | None = None, rules: ConnectorRules | None = None
    ) -> "LabEngine":
        """A new engine, not yet running."""
        shape = shape or EngineShape(blocks=256, block_size=4, max_model_len=1000)
        made = self.engines[name] = LabEngine(self, name, shape, rules or ConnectorRules())
        return made


class LabEngine:
    """One engine; its peers are reached directly."""

    def __init__(self, lab: Lab, name: str, shape: EngineShape, rules: ConnectorRules) -> None:
        self.lab = lab
        self.pool = BlockPool(
            total=shape.blocks, block_size=shape.block_size, caching=shape.prefix_caching
        )
        self.retentions = RetentionTable(release=self._release)
        self.counters = Counters(
            model="m", gauges=Gauges(running=lambda: 0, waiting=lambda: 0, kv_usage=lambda: 0.0)
        )
        self.pace = Pace()
        self.reachable = True
        self.late_reads = 0
        # How long its reads take instead of what the speed says.
        self.reads_take: float | None = None
        keeper = Keeper(
            rules=rules,
            retentions=self.retentions,
            address=Peer("host", 1, name),
            exported_clock=lambda at: at,
            clock=lab.clock,
        )
        reader = Reader(
            peers=_Direct(lab, self),
            pool=self.pool,
            rules=rules,
            speed=SPEED,
            counters=self.counters,
            clock=lab.clock,
            pace=self.pace,
        )
        self.scheduler = Scheduler(
            shape=shape,
            speed=SPEED,
            rules=rules,
            pool=self.pool,
            retentions=self.retentions,
            keeper=keeper,
            reader=reader,
            counters=self.counters,
            clock=lab.clock,
            pace=self.pace,
        )

    def _release(self, block_ids: list[int]) -> None:
        self.pool.release(block_ids)
        self.scheduler.wake()

    def submit(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int = 4,
        params: dict[str, Any] | None = None,
        name: str = "",
        **sampling: Any,
    ) -> Request:
        """Adds a request."""
        request = Request(
            request_id=name or f"request-{id(self)}-{len(self.retentions)}-{len(prompt)}",
            prompt=list(prompt),
            context=context_of(),
            sampling=Sampling(max_tokens, ignore_eos=True, **sampling),
            params=params,
        )
        self.scheduler.add(request)
        return request

    def handle(self) -> dict[str, Any]:
        """What the plane would hand out for the only retention under a lease."""
        held: list[Retention] = [one for one in self.retentions if one.proof is not None]
        assert len(held) == 1
        assert held[0].proof is not None
        return {
            **held[0].params,
            "remote_blocks_expiry_time": held[0].exported,
            KEY: encode_proof(held[0].proof),
        }


class _Direct:
    def __init__(self, lab: Lab, reader: LabEngine) -> None:
        self._lab = lab
        self._reader = reader

    async def clock_ahead(self, peer: Peer) -> float:
        self._owner(peer)
        return 0.0

    async def read(self, read: RemoteRead, *, seconds: float) -> Sequence[bytes]:
        taken = self._reader.reads_take
        await self._lab.clock.sleep(seconds if taken is None else taken)
        owner = self._owner(read.peer)
        return [owner.pool.copy_out(block_id) for block_id in read.block_ids]

    async def tell_read(self, peer: Peer, request_id: str) -> None:
        owner = self._owner(peer)
        if not owner.retentions.read(request_id):
            owner.late_reads += 1

    async def keep_alive(self, peer: Peer, request_ids: Sequence[str]) -> None:
        self._owner(peer).retentions.extend(request_ids, self._lab.clock.now() + 20.0)

    def _owner(self, peer: Peer) -> LabEngine:
        owner = self._lab.engines.get(peer.engine_id)
        if owner is None or not owner.reachable:
            raise ReadFailed("nobody there")
        return owner


class Running:
    """Runs engines while a test's body runs; `async with Running(engine, ...)`."""

    def __init__(self, *engines: LabEngine) -> None:
        self._engines = engines
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for engine in self._engines:
            task = asyncio.ensure_future(engine.scheduler.run())
            self._stack.push_async_callback(_ended, task)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()


async def _ended(task: "asyncio.Future[None]") -> None:
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


async def finish(clock: FakeClock, request: Request, *, within: float = 10.0) -> Output:
    """Lets time pass until a request is over; returns its last news."""
    waited = 0.0
    while waited <= within:
        while not request.outputs.empty():
            output = request.outputs.get_nowait()
            if output.finish_reason is not None:
                return output
        await clock.advance(0.01)
        waited += 0.01
    raise AssertionError(f"{request.request_id} is not over after {within} s")
