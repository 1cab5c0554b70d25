"""One plane for the tests of a module, and a conversation of its own for each test."""

from collections.abc import Iterator

import pytest

from kvplane.client import SessionKey
from tests.support.plane_process import PlaneProcess


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlaneProcess]:
    plane = PlaneProcess(tmp_path_factory.mktemp("plane"))
    plane.start()
    yield plane
    assert plane.stop() == 0


@pytest.fixture
def key(request: pytest.FixtureRequest) -> SessionKey:
    return SessionKey("default", f"m-{request.node.name}", "", "a conversation: 1/2")
