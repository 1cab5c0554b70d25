"""Real etcd clusters, for tests. Methods block, as those of `tests.support.etcd` do."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.etcd import EtcdNode, etcd_folder
from tests.support.programs import wait_until

# Seconds; generous, since test machines are busy.
_ELECTION = 40.0


class EtcdCluster:
    """Nodes that form one etcd."""

    def __init__(self, folder: Path, *, size: int = 3, arguments: Sequence[str] = ()) -> None:
        self.nodes = tuple(
            EtcdNode(folder, name=f"etcd{number}", arguments=arguments) for number in range(size)
        )
        members = {node.name: node.peer_url for node in self.nodes}
        for node in self.nodes:
            node.members = members

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Where clients find the nodes."""
        return tuple(node.endpoint for node in self.nodes)

    def start(self) -> None:
        """Starts all nodes that do not run, and waits until they serve."""
        for node in self.nodes:
            if not node.running:
                node.launch()
        for node in self.nodes:
            node.wait_ready()

    def leader(self) -> EtcdNode:
        """The node that leads, waiting for an election."""
        wait_until(lambda: any(n.leads for n in self.nodes), seconds=_ELECTION, what="a leader")
        return next(node for node in self.nodes if node.leads)

    def stop(self) -> None:
        """Ends all nodes."""
        for node in self.nodes:
            node.kill()

    def wipe(self) -> None:
        """Loses all data; no node must run."""
        for node in self.nodes:
            node.wipe()


@contextmanager
def running_cluster(*, size: int = 3, arguments: Sequence[str] = ()) -> Iterator[EtcdCluster]:
    """A fresh etcd of several nodes that serve; ended and removed as in `running_node`."""
    with etcd_folder() as folder:
        cluster = EtcdCluster(folder, size=size, arguments=arguments)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
