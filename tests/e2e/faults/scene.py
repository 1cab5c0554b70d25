"""What every fault must leave true, checked from outside: by clients, engines, watches and etcd."""

import base64
from collections import defaultdict
from dataclasses import dataclass

from kvplane_services.clock import SystemClock
from tests.support.conversations import Conversation, Crowd, Turn, failed
from tests.support.etcd import EtcdNode
from tests.support.etcd_cluster import EtcdCluster
from tests.support.lease_events import LeaseWatch
from tests.support.programs import wait_until
from tests.support.replicas import Deployment, Holding, Replica

PREFIX = "/kvplane/v1/"
# How leases end whose conversations go on.
_GOOD_ENDS = {"SUPERSEDED", "RELEASED"}


@dataclass
class Scene:
    """A deployment under load, on an etcd of three nodes.

    Attributes:
        etcd: The cluster.
        plane: Replicas and engines.
        crowd: Talks all the while.
        watch: The leases as every replica tells of them.
        idle: What engines held, when the test began, for conversations that have no more turns.
        began: When the test began, on the monotonic clock.

    """

    etcd: EtcdCluster
    plane: Deployment
    crowd: Crowd
    watch: LeaseWatch
    idle: list[Holding]
    began: float

    @property
    def turns(self) -> list[Turn]:
        """Turns that ended in this test."""
        return [turn for turn in self.crowd.turns if turn.ended >= self.began]

    def replica(self, number: int) -> Replica:
        """One of the replicas."""
        return self.plane.replicas[number]

    def lease_of(self, conversation: Conversation) -> str:
        """The lease that a conversation which has no turn under way is kept by."""
        found: list[str] = []

        def kept() -> bool:
            found[:] = [
                one.lease
                for one in self.plane.held()
                if one.session == conversation.session and not one.releasing
            ]
            return len(found) == 1 and bool(found[0])

        wait_until(kept, seconds=20, what=f"{conversation.session} has one lease")
        return found[0]

    def check(self, *, killed: str = "") -> None:
        """Waits until everything is in order again, and checks that it was all the while.

        Args:
            killed: A replica that was killed: turns that it was serving broke off.

        """
        self.crowd.until_all_spoke()
        with self.crowd.resting():
            agreed_in = self.plane.wait_agreed()
            self.check_idle()
            self.check_keys()
        self.check_reuse()
        bad = failed(self.turns, excused=lambda turn: turn.status == 0 and turn.gateway == killed)
        assert not bad, f"{len(bad)} of {len(self.turns)} turns failed: {bad[:5]}"
        self.check_ends()
        self.check_tokens()
        turns = len(self.turns)
        seconds = SystemClock().now() - self.began
        print(f"\nagreed again after {agreed_in:.1f} s; {turns} turns in {seconds:.0f} s")  # noqa: T201 - the figures of the document

    def check_idle(self) -> None:
        """What was kept of conversations that nobody went on with is kept, under the same lease."""
        lost = set(self.idle) - set(self.plane.held())
        assert not lost, f"these were given up: {lost}"

    def check_reuse(self) -> None:
        """Every conversation goes on with what was kept of it."""
        latest: dict[str, Turn] = {turn.session: turn for turn in self.turns if turn.served}
        sessions = {one.session for one in self.crowd.conversations}

        def reused() -> bool:
            latest.update((turn.session, turn) for turn in self.turns if turn.served)
            return all(latest[session].held_tokens > 0 for session in sessions)

        wait_until(reused, seconds=20, what=f"every conversation is reused, not {latest}")

    def check_ends(self) -> None:
        """No lease ended but by its conversation's next turn."""
        bad = {
            (event.replica, event.lease, event.reason)
            for event in self.watch.since(self.began)
            if event.reason and event.reason not in _GOOD_ENDS
        }
        assert not bad, f"leases ended early: {bad}"

    def check_tokens(self) -> None:
        """No retention ever had two leases, nor a lease two tokens."""
        leases: defaultdict[str, set[tuple[str, int]]] = defaultdict(set)
        for event in self.watch.since(self.began):
            leases[event.retention_id].add((event.lease, event.fencing_token))
        twice = {name: found for name, found in leases.items() if len(found) > 1}
        assert not twice, f"leased twice: {twice}"

    def check_keys(self) -> None:
        """etcd has a key for every engine, its home and every live lease."""

        def missing() -> set[str]:
            wanted = {
                f"{PREFIX}{table}/{one.name}" for one in self.plane.engines for table in _OF_ENGINES
            }
            wanted |= {
                f"{PREFIX}leases/{one.lease.removeprefix('leases/')}"
                for one in self.plane.held()
                if one.lease and not one.releasing
            }
            return wanted - keys(self.etcd.nodes[0])

        wait_until(lambda: not missing(), seconds=30, what="every key is in etcd")


_OF_ENGINES = ("engines", "homes")


def keys(etcd: EtcdNode) -> set[str]:
    """All keys of the plane in an etcd."""
    start = PREFIX.encode()
    body = {
        "key": base64.b64encode(start).decode(),
        "range_end": base64.b64encode(start[:-1] + bytes([start[-1] + 1])).decode(),
        "keys_only": True,
    }
    found = etcd.call("kv/range", body).get("kvs", ())
    return {base64.b64decode(one["key"]).decode() for one in found}


def lease_ids(etcd: EtcdNode) -> list[str]:
    """All leases that an etcd has, by id."""
    return [one["ID"] for one in etcd.call("kv/lease/leases").get("leases", ())]
