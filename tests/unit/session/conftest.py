"""Registries to test."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from tests.support.state_plane import StatePlane
from tests.unit.session.remote_leases import Remote
from tests.unit.session.running_registry import Running


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with AsyncExitStack() as stack:
        plane = StatePlane()
        await stack.enter_async_context(plane.running())
        running = Running(plane)
        await running.start()
        yield running


@pytest.fixture
async def remote() -> AsyncIterator[Remote]:
    remote = Remote()
    async with remote.plane.running():
        yield remote
