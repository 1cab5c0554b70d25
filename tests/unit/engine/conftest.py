"""Fleets and pairs of replicas to test."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from tests.support.engine_fleet import Fleet
from tests.support.home_pair import Pair


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        fleet = Fleet()
        await stack.enter_async_context(fleet.running())
        yield fleet


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        pair = Pair()
        await stack.enter_async_context(pair.running())
        yield pair
