from collections.abc import Iterator

import pytest

from kvplane_services.local.engines import EnginePair
from tests.support.recording_plane import RecordingPlane
from tests.support.vllm_engines import started_pair

# Long enough that a handle can be read within vLLM's 5 s of its expiry, short enough to wait for.
LEASE_TTL = 8.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "integration/vllm" in str(item.path):
            item.add_marker(pytest.mark.vllm)
            # The first test waits for the engines.
            item.add_marker(pytest.mark.timeout(240))


@pytest.fixture(scope="package")
def plane() -> Iterator[RecordingPlane]:
    plane = RecordingPlane(lease_ttl=LEASE_TTL)
    plane.start()
    yield plane
    plane.stop()


@pytest.fixture(scope="package")
def pair(plane: RecordingPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnginePair]:
    with started_pair(plane.target, tmp_path_factory.mktemp("vllm")) as pair:
        yield pair


@pytest.fixture(autouse=True)
def renewing(plane: RecordingPlane) -> Iterator[None]:
    """Each test starts with a plane that renews everything, and leaves one behind."""
    plane.renews = lambda _: True
    plane.releases.clear()
    yield
    plane.renews = lambda _: True
