"""Puts one simulated engine together and runs it."""

import asyncio
import os
import signal
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass

import aiohttp
from aiohttp import web

from kvplane.client import EngineLink, Registration
from kvplane.client.grpc_frames import GrpcEngineTransport
from kvplane_services.clock import Clock
from kvplane_services.listen import ListenAddress
from kvplane_services.sim.addresses import base_url, reachable
from kvplane_services.sim.blocks import BlockPool
from kvplane_services.sim.config import SimEngineConfig
from kvplane_services.sim.counters import Counters, Gauges
from kvplane_services.sim.faults import FaultKind, FaultSet
from kvplane_services.sim.http import HttpServer, ServedModel
from kvplane_services.sim.keeping import Keeper
from kvplane_services.sim.pace import Pace
from kvplane_services.sim.peers import PeerClient, SideChannel
from kvplane_services.sim.plane import (
    MutableTransport,
    PlaneSource,
    RetentionReporter,
    describe_engine,
)
from kvplane_services.sim.reading import Reader
from kvplane_services.sim.retentions import RetentionTable
from kvplane_services.sim.scheduler import Scheduler
from kvplane_services.sim.transfers import Peer


@dataclass(frozen=True, slots=True)
class Serving:
    """Where a started engine can be found; `endpoint` is its base URL."""

    engine_id: str
    endpoint: str
    side_channel: Peer


class SimEngine:
    """One simulated engine in this process. Use with `async with`; then `run()` until cancelled.

    Args:
        config: Everything.
        version: Version of the kvplane package, for the registration.
        clock: Time.
        faults: What goes wrong from the start.

    """

    def __init__(
        self,
        *,
        config: SimEngineConfig,
        version: str,
        clock: Clock,
        faults: FaultSet | None = None,
    ) -> None:
        self._config = config
        self._version = version
        self._clock = clock
        self._faults = faults or FaultSet()
        self._stack = AsyncExitStack()
        self._pace = Pace()
        self._pool = BlockPool(
            total=config.shape.blocks,
            block_size=config.shape.block_size,
            caching=config.shape.prefix_caching,
        )
        self._reporter = RetentionReporter(
            exported_clock=self._exported, block_size=config.shape.block_size
        )
        self._retentions = RetentionTable(release=self._release, observer=self._reporter)
        self._counters = Counters(
            model=config.model,
            gauges=Gauges(
                running=lambda: self._scheduler.running if self._scheduler else 0,
                waiting=lambda: self._scheduler.waiting if self._scheduler else 0,
                kv_usage=lambda: self._pool.used / self._pool.total,
            ),
        )
        self._scheduler: Scheduler | None = None
        self._link: EngineLink | None = None
        # New after every restart, as vLLM's.
        self._engine_uuid = str(uuid.uuid4())
        # Clocks of machines start at different times; so do these.
        self._clock_origin = uuid.uuid4().int % 1_000_000 / 10

    async def __aenter__(self) -> Serving:
        """Starts listening.

        Raises:
            InvalidRequest: An address cannot be read.
            OSError: An address is taken.

        """
        async with AsyncExitStack() as stack:
            serving = await self._start(stack)
            self._stack = stack.pop_all()
        return serving

    async def __aexit__(self, *_: object) -> None:
        """Stops listening, and takes the registration back."""
        await self._stack.aclose()

    async def run(self) -> None:
        """Serves until cancelled.

        Raises:
            FencedError: Another engine registered under the same name.

        """
        if self._scheduler is None:
            raise RuntimeError("enter the engine first")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._scheduler.run())
            if self._link is not None:
                tasks.create_task(self._link.run())

    async def _start(self, stack: AsyncExitStack) -> Serving:
        config = self._config
        listen = ListenAddress.parse(config.side_channel, field="side_channel")
        port = await _listen(stack, self._side_channel().application(), listen)
        address = Peer(reachable(listen.host), port, self._engine_uuid)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        keeper = Keeper(
            rules=config.connector,
            retentions=self._retentions,
            address=address,
            exported_clock=self._exported,
            clock=self._clock,
        )
        scheduler = self._scheduler = Scheduler(
            shape=config.shape,
            speed=config.speed,
            rules=config.connector,
            pool=self._pool,
            retentions=self._retentions,
            keeper=keeper,
            reader=self._reader(session),
            counters=self._counters,
            clock=self._clock,
            pace=self._pace,
        )
        self._apply_faults()
        listen = ListenAddress.parse(config.http, field="http")
        port = await _listen(stack, self._server(scheduler).application(), listen)
        serving = Serving(
            engine_id=config.engine_id or f"sim-{config.role.value}-{port}",
            endpoint=config.advertise or base_url(listen.host, port),
            side_channel=address,
        )
        if config.plane and not config.connector.stock:
            self._link = self._make_link(serving, scheduler, keeper)
            self._reporter.wake = self._link.notify
            stack.push_async_callback(self._link.aclose)
        return serving

    def _side_channel(self) -> SideChannel:
        return SideChannel(
            engine_id=self._engine_uuid,
            pool=self._pool,
            retentions=self._retentions,
            exported_now=lambda: self._exported(self._clock.now()),
            # vLLM's heartbeats extend by two thirds of the lease.
            staged_extension=self._config.connector.staged_ttl * 2 / 3,
            read_late=self._counters.notified_late,
            clock=self._clock,
            pace=self._pace,
        )

    def _reader(self, session: aiohttp.ClientSession) -> Reader:
        config = self._config
        return Reader(
            peers=PeerClient(
                http=session,
                clock=self._clock,
                block_bytes=8 * config.shape.block_size,
                fails=lambda: self._faults.take(FaultKind.FAIL_READS) is not None,
            ),
            pool=self._pool,
            rules=config.connector,
            speed=config.speed,
            counters=self._counters,
            clock=self._clock,
            pace=self._pace,
        )

    def _server(self, scheduler: Scheduler) -> HttpServer:
        config = self._config
        # One block fewer than there are: the token that is sampled last needs room too.
        room = (config.shape.blocks - 1) * config.shape.block_size
        return HttpServer(
            model=ServedModel(config.model, min(config.shape.max_model_len, room)),
            scheduler=scheduler,
            retentions=self._retentions,
            counters=self._counters,
            faults=self._faults,
            faults_changed=self._apply_faults,
            clock=self._clock,
            pace=self._pace,
            die=lambda: os.kill(os.getpid(), signal.SIGKILL),
        )

    def _make_link(self, serving: Serving, scheduler: Scheduler, keeper: Keeper) -> EngineLink:
        def registered(registration: Registration) -> None:
            if registration.lease_ttl > 0:
                keeper.retention_ttl = registration.lease_ttl

        config = self._config
        return EngineLink(
            target=config.plane,
            engine_id=serving.engine_id,
            engine=describe_engine(
                config=config,
                endpoint=serving.endpoint,
                address=serving.side_channel,
                version=self._version,
            ),
            source=PlaneSource(
                reporter=self._reporter,
                retentions=self._retentions,
                scheduler=scheduler,
                pool=self._pool,
                clock=self._clock,
            ),
            clock=self._clock,
            transport=MutableTransport(
                GrpcEngineTransport(config.plane), muted=self._is_mute, clock=self._clock
            ),
            on_registered=registered,
        )

    def _release(self, block_ids: list[int]) -> None:
        self._pool.release(block_ids)
        if self._scheduler is not None:
            self._scheduler.wake()

    def _exported(self, at: float) -> float:
        return at + self._clock_origin

    def _is_mute(self) -> bool:
        kinds = (FaultKind.SILENT, FaultKind.FREEZE)
        return any(self._faults.lasting(kind) is not None for kind in kinds)

    def _apply_faults(self) -> None:
        slow = self._faults.lasting(FaultKind.SLOW)
        self._pace.factor = slow.values["factor"] if slow is not None else 1.0
        self._pace.frozen = self._faults.lasting(FaultKind.FREEZE) is not None


async def _listen(
    stack: AsyncExitStack, application: web.Application, address: ListenAddress
) -> int:
    """Serves an application; returns the port, which is a free one for port 0."""
    runner = web.AppRunner(
        application, handler_cancellation=True, access_log=None, shutdown_timeout=1.0
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, address.host, address.port).start()
    bound: int = runner.addresses[0][1]
    return bound
