"""One deployment for all tests of faults: each leaves it whole, or the next gets a new one."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvplane_services.clock import SystemClock
from tests.e2e.faults.scene import Scene
from tests.support.conversations import Crowd, talking
from tests.support.etcd_cluster import EtcdCluster, running_cluster
from tests.support.lease_events import watching
from tests.support.programs import wait_until
from tests.support.replicas import Deployment, Holding, deployed

# Conversations that each test begins and does not go on with.
_LEFT_ALONE = 2


class Grounds:
    """Keeps a deployment from test to test, as long as it is whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0
        self._stack = ExitStack()
        self._current: tuple[EtcdCluster, Deployment] | None = None

    def get(self) -> tuple[EtcdCluster, Deployment]:
        """etcd and the plane on it, running."""
        if self._current is None:
            self._made += 1
            folder = self._folder / str(self._made)
            folder.mkdir()
            etcd = self._stack.enter_context(running_cluster())
            ports = [node.port for node in etcd.nodes]
            plane = self._stack.enter_context(deployed(folder, etcd=ports))
            self._current = etcd, plane
        return self._current

    def drop(self) -> None:
        """Ends what runs; the next test gets another."""
        self._current = None
        self._stack.close()


@pytest.fixture(scope="package")
def grounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grounds]:
    grounds = Grounds(tmp_path_factory.mktemp("faults"))
    yield grounds
    grounds.drop()


def _left_alone(plane: Deployment, crowd: Crowd) -> list[Holding]:
    """What is held for conversations that will have no more turns."""
    sessions = {crowd.retire(number).session for number in range(_LEFT_ALONE)}

    def held() -> list[Holding]:
        return [one for one in plane.held() if one.session in sessions and not one.releasing]

    wait_until(
        lambda: len(found := held()) == len(sessions) and all(one.lease for one in found),
        seconds=20,
        what="each has a lease",
    )
    return held()


@pytest.fixture
def scene(grounds: Grounds) -> Iterator[Scene]:
    etcd, plane = grounds.get()
    whole = False
    try:
        with watching(plane.targets) as watch, talking(plane.gateways) as crowd:
            idle = _left_alone(plane, crowd)
            crowd.until_all_spoke()
            yield Scene(etcd, plane, crowd, watch, idle, began=SystemClock().now())
        plane.wait_agreed(seconds=20)
        whole = True
    finally:
        if not whole:
            grounds.drop()
