"""Replicas die, are cut off and restart; conversations and their leases go on."""

import pytest

from tests.e2e.faults.scene import Scene
from tests.support.programs import pause

pytestmark = pytest.mark.timeout(180)

# Longer than engines wait for an answer, and than a registration lives without heartbeats.
_CUT = 14


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_replica_is_killed(scene: Scene, number: int) -> None:
    """After kill -9 of a replica only the turns that it was serving break off."""
    replica = scene.replica(number)
    replica.kill()
    scene.crowd.until_all_spoke()
    replica.start()
    scene.check(killed=replica.name)


@pytest.mark.parametrize("cut", ["etcd", "engines", "both"])
def test_a_replica_is_cut_off(scene: Scene, cut: str) -> None:
    """What a replica believes that was cut off hurts nobody, and is right again afterwards."""
    replica = scene.plane.busiest()
    if cut != "engines":
        scene.plane.cut_from_etcd(replica)
    if cut != "etcd":
        scene.plane.cut_from_engines(replica)
    if cut == "both":
        # Neither would a balancer's probe reach it.
        scene.crowd.shun(replica.name)
    pause(_CUT)
    scene.plane.mend()
    with scene.crowd.resting():
        scene.plane.wait_agreed()
    scene.crowd.shun()
    scene.check()


def test_all_replicas_restart_one_by_one(scene: Scene) -> None:
    """A rolling restart under load loses no lease and fails no turn."""
    for replica in scene.plane.replicas:
        assert replica.stop() == 0
        replica.start()
        scene.crowd.until_all_spoke()
    scene.check()
