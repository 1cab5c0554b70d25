"""Fleets to test."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from tests.support.engine_fleet import Fleet


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        fleet = Fleet()
        await stack.enter_async_context(fleet.running())
        yield fleet
