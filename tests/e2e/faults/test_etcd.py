"""etcd dies, stalls, forgets and loses leases; conversations and their leases go on."""

import itertools
import statistics

import pytest

from tests.e2e.faults.scene import Scene, lease_ids
from tests.support.programs import pause

pytestmark = pytest.mark.timeout(180)


def test_the_leader_is_killed(scene: Scene) -> None:
    """After kill -9 of etcd's leader under load nothing is lost, and nobody notices."""
    leader = scene.etcd.leader()
    leader.kill()
    scene.crowd.until_all_spoke()
    pause(3)
    leader.start()
    scene.check()


def test_etcd_stands_still(scene: Scene) -> None:
    """While all of etcd is stopped for 20 s turns are served and leases renewed from memory."""
    for node in scene.etcd.nodes:
        node.pause()
    try:
        pause(10)
        scene.crowd.until_all_spoke(seconds=10)
        pause(10)
    finally:
        for node in scene.etcd.nodes:
            node.resume()
    scene.check()


@pytest.mark.parametrize("keeps_data", [True, False], ids=["with-data", "without-data"])
def test_etcd_restarts(scene: Scene, *, keeps_data: bool) -> None:
    """etcd is killed and comes back, or comes back empty: every key is put back."""
    for node in scene.etcd.nodes:
        node.kill()
    if not keeps_data:
        scene.etcd.wipe()
    before = {
        name: [len(way.attempts) for way in ways] for name, ways in scene.plane.to_etcd.items()
    }
    pause(5)
    tries = {
        name: [way.attempts[count:] for way, count in zip(ways, before[name], strict=True)]
        for name, ways in scene.plane.to_etcd.items()
    }
    scene.crowd.until_all_spoke(seconds=20)
    scene.etcd.start()
    scene.check()
    for name, ways in tries.items():
        waits = [b - a for times in ways for a, b in itertools.pairwise(times)]
        # Ten a second at one node is what a tight loop does at the least.
        assert len(waits) < 10 * 5 * len(ways), f"{name} does not back off: {waits}"
        assert len(waits) < 3 or statistics.pstdev(waits) > 0.01, f"{name} is no jitter: {waits}"


def test_history_is_compacted_while_a_watch_is_down(scene: Scene) -> None:
    """A replica that missed what etcd has compacted meanwhile lists again, and is right."""
    replica = scene.plane.busiest()
    scene.plane.cut_from_etcd(replica)
    scene.crowd.until_all_spoke()
    pause(2)
    # Twice, so that also what was written during the first is gone.
    scene.etcd.leader().compact()
    scene.crowd.until_all_spoke()
    scene.etcd.leader().compact()
    scene.plane.mend()
    scene.check()


def test_etcds_leases_are_lost(scene: Scene) -> None:
    """Every etcd lease is revoked behind the plane's back: its keys are put back."""
    node = scene.etcd.nodes[0]
    lost = lease_ids(node)
    assert lost
    for lease in lost:
        node.call("kv/lease/revoke", {"ID": lease})
    # For as long as replicas believe that what vanished will be put back.
    pause(3)
    scene.check()
    assert not set(lost) & set(lease_ids(node))
