"""A change made at one replica is seen at the others."""

from collections.abc import Callable
from functools import partial

import pytest

from kvplane.api.engine.v1.engine_pb2 import Engine
from kvplane.api.lease.v1.lease_pb2 import Lease
from kvplane.api.session.v1.session_pb2 import Session
from kvplane.client import NotFoundError, SessionKey
from kvplane.client.sync import SyncPlane
from tests.e2e.faults.scene import Scene
from tests.support.programs import wait_until
from tests.support.replicas import Replica

pytestmark = pytest.mark.timeout(120)


def _seen(what: str, replica: Replica, so: Callable[[SyncPlane], bool]) -> None:
    with SyncPlane(replica.target) as plane:
        lag = wait_until(lambda: so(plane), seconds=10, what=f"{what} at {replica.name}")
    print(f"{what}: at {replica.name} after {lag * 1000:.0f} ms")  # noqa: T201 - for the document


def _is(engine: str, state: Engine.State.ValueType, plane: SyncPlane) -> bool:
    return plane.run(plane.engines.get(engine)).state == state


def _ended(session: str, plane: SyncPlane) -> bool:
    return plane.run(plane.sessions.get(session)).state == Session.STATE_ENDED


def _given_up(lease: str, plane: SyncPlane) -> bool:
    return plane.run(plane.leases.get(lease)).state != Lease.STATE_ACTIVE


def _freed(scene: Scene, leases: list[str]) -> None:
    def freed() -> bool:
        return all(one.lease not in leases for one in scene.plane.held())

    wait_until(freed, seconds=40, what="the engine freed the blocks")


def test_a_drain_at_one_replica_is_seen_at_all(scene: Scene) -> None:
    """Whichever replica an operator drains an engine at, all replicas and the engine know."""
    engine = "engines/decode-0"
    states = {"drained": Engine.STATE_DRAINING, "resumed": Engine.STATE_ACTIVE}
    for (what, state), asked in zip(states.items(), scene.plane.replicas, strict=False):
        with SyncPlane(asked.target) as plane:
            change = plane.engines.drain if what == "drained" else plane.engines.resume
            plane.run(change(engine))
        for replica in scene.plane.replicas:
            _seen(f"engine {what}", replica, partial(_is, engine, state))
    scene.check()


def test_sessions_are_one_at_all_replicas(scene: Scene) -> None:
    """Created, touched and deleted at different replicas, a session is the same at all."""
    first, second, third = scene.plane.replicas
    key = SessionKey("default", "kvplane-tiny", "", "made-by-hand")

    def gone(plane: SyncPlane) -> bool:
        try:
            plane.run(plane.sessions.get(key))
        except NotFoundError:
            return True
        return False

    with SyncPlane(first.target) as plane:
        plane.run(plane.sessions.create(key))
    for replica in (second, third):
        _seen("session created", replica, lambda p: not gone(p))
    with SyncPlane(second.target) as plane:
        plane.run(plane.sessions.touch(key, keep_for=30))
    for replica in (first, third):
        _seen(
            "session touched",
            replica,
            lambda p: p.run(p.sessions.get(key)).hints.keep_for.seconds == 30,
        )
    with SyncPlane(third.target) as plane:
        plane.run(plane.sessions.delete(key))
    for replica in (first, second):
        _seen("session deleted", replica, gone)


def test_the_end_of_a_conversation_reaches_its_engine(scene: Scene) -> None:
    """Ended at any replica, a session's lease is released by its engine, and all know."""
    ended: list[str] = []
    for number, asked in enumerate(scene.plane.replicas):
        conversation = scene.crowd.retire(number)
        lease = scene.lease_of(conversation)
        with SyncPlane(asked.target) as plane:
            key = plane.run(plane.leases.get(lease)).session
            plane.run(plane.sessions.end(key))
        for replica in scene.plane.replicas:
            _seen("session ended", replica, partial(_ended, key))
            _seen("lease given up", replica, partial(_given_up, lease))
        ended.append(lease)
    _freed(scene, ended)
