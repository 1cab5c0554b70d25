import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import aiohttp
import pytest

from kvplane_services.clock import SystemClock
from kvplane_services.gateway.app import build_gateway
from kvplane_services.gateway.config import GatewayConfig
from kvplane_services.gateway.server import listening
from kvplane_services.telemetry import Telemetry
from tests.integration.gateway.recording_router import RecordingRouter
from tests.integration.gateway.running_gateway import RunningGateway
from tests.integration.gateway.scripted_engine import (
    Behaviour,
    ScriptedEngine,
    prefill_answer,
    scripted_engine,
)

GatewayMaker = Callable[..., AbstractAsyncContextManager[RunningGateway]]


@asynccontextmanager
async def no_task_left_behind() -> AsyncGenerator[None]:
    """Fails if tasks that began inside of the block outlive it."""
    before = asyncio.all_tasks()
    yield
    left: set[asyncio.Task[object]] = set()
    for _ in range(50):
        left = {task for task in asyncio.all_tasks() - before if not task.done()}
        if not left:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"tasks left behind: {left}")


@pytest.fixture
def make_gateway() -> GatewayMaker:
    """Starts a gateway in front of engines that behave as given."""

    @asynccontextmanager
    async def make(
        *,
        prefill: list[Behaviour] | None = None,
        decode: list[Behaviour] | None = None,
        config: GatewayConfig | None = None,
    ) -> AsyncGenerator[RunningGateway]:
        config = config or GatewayConfig(shutdown_grace=0.2)
        telemetry = Telemetry()
        async with no_task_left_behind(), AsyncExitStack() as stack:
            prefills: list[ScriptedEngine] = [
                await stack.enter_async_context(scripted_engine(one))
                for one in ([prefill_answer()] if prefill is None else prefill)
            ]
            decodes = [
                await stack.enter_async_context(scripted_engine(one)) for one in decode or []
            ]
            router = RecordingRouter(
                prefills=[one.url for one in prefills], decodes=[one.url for one in decodes]
            )
            app = build_gateway(
                router=router, settings=config, clock=SystemClock(), telemetry=telemetry
            )
            stack.callback(telemetry.close)
            _, port = await stack.enter_async_context(
                listening(
                    app,
                    host="127.0.0.1",
                    port=0,
                    shutdown_grace=config.shutdown_grace,
                )
            )
            session = await stack.enter_async_context(
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
            )
            yield RunningGateway(
                url=f"http://127.0.0.1:{port}",
                app=app,
                router=router,
                prefills=prefills,
                decodes=decodes,
                session=session,
                telemetry=telemetry,
            )

    return make
