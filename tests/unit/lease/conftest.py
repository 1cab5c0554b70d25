"""Planes to test."""

from collections.abc import AsyncIterator

import pytest

from kvplane_services.lease.config import LeaseConfig
from tests.support.lease_fleet import LeaseFleet
from tests.support.state_plane import StatePlane


@pytest.fixture
def plane() -> StatePlane:
    return StatePlane()


@pytest.fixture
async def fleet() -> AsyncIterator[LeaseFleet]:
    """Three replicas with all their loops."""
    fleet = LeaseFleet(leases=LeaseConfig(idle_keep=120.0))
    async with fleet.running():
        yield fleet
        for store in fleet.stores:
            store.heal()
