"""Planes to test."""

import pytest

from tests.support.state_plane import StatePlane


@pytest.fixture
def plane() -> StatePlane:
    return StatePlane()
