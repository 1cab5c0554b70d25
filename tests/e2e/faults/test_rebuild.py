"""A plane that forgot everything is right again from its engines' own reports."""

from pathlib import Path

import pytest

from tests.support.conversations import talking
from tests.support.programs import wait_until
from tests.support.replicas import Deployment, deployed

pytestmark = pytest.mark.timeout(120)

# Engines notice that their plane is back within their longest wait between two attempts; on a busy
# machine all of it takes longer than the heartbeat that it takes in itself.
_PATIENCE = 20


def _leases(plane: Deployment) -> dict[str, int]:
    return {one.lease: one.fencing_token for one in plane.held() if not one.releasing}


def test_an_empty_memory_is_filled_by_one_heartbeat_of_each_engine(tmp_path: Path) -> None:
    """After kill -9 of a plane on the embedded store all leases are back, by name and token."""
    with deployed(tmp_path, etcd=(), count=1) as plane:
        with talking(plane.gateways):
            pass
        plane.wait_agreed()
        before = _leases(plane)
        assert before
        [replica] = plane.replicas
        replica.kill()
        replica.launch()
        assert replica.program is not None
        replica.program.wait_for(r"gRPC ready on (\S+)")
        registered_in = wait_until(
            lambda: len(replica.engines()) == len(plane.engines),
            seconds=_PATIENCE,
            what="all engines are registered",
        )
        agreed_in = plane.wait_agreed(seconds=_PATIENCE)
        print(f"registered after {registered_in:.2f} s, agreed {agreed_in:.2f} s later")  # noqa: T201 - for the document
        assert _leases(plane) == before
        replica.wait_ready()
        with talking(plane.gateways) as crowd:
            assert all(turn.served for turn in crowd.turns)
