"""A plane of several replicas on a real etcd, with simulated engines: all processes of their own.

Every way between them goes through a proxy of its own that can be cut: from each replica to each
etcd node, and from the engines to each replica.
"""

import json
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplane.api.engine.v1.engine_pb2 import Engine
from kvplane.api.lease.v1.lease_pb2 import Lease
from kvplane.client import KvplaneClientError
from kvplane.client.sync import SyncPlane
from tests.support.conversations import Gateway, is_ready
from tests.support.etcd import free_port
from tests.support.programs import Program, wait_until
from tests.support.sim_engines import SimProcess, start_sim
from tests.support.tcp_proxy import TcpProxies, TcpProxy, tcp_proxies

# Engines wait 5 s for an answer before they try another replica; what they hold must outlive that
# on a busy machine.
SETTINGS = """
[gateway]
response_headers = true
allow_strategy_header = true
[registration]
ttl = 12
heartbeat_interval = 0.25
[leases]
idle_keep = 3600.0  # conversations that are left alone must outlast all tests
ttl = 15
grace = 2
"""
_SPEED = ("--prefill-tokens-per-s", "100000", "--decode-ms-per-token", "2", "--retention-ttl", "15")


@dataclass(frozen=True, slots=True)
class Holding:
    """A retention that an engine holds, as the engine itself says."""

    engine: str
    retention_id: str
    session: str
    lease: str
    fencing_token: int
    releasing: bool


class Replica:
    """One `kvplane up`; its ports stay the same over restarts.

    Args:
        name: For its log.
        folder: For its settings and log.
        settings: TOML.
        store: For `--store`.

    """

    def __init__(self, name: str, folder: Path, *, settings: str, store: str) -> None:
        self.name = name
        self.store = store
        self.port = free_port()
        self.target = f"127.0.0.1:{self.port}"
        self.gateway = Gateway(name, free_port())
        self._config = folder / f"{name}.toml"
        self._config.write_text(settings, encoding="utf-8")
        self._log = folder / f"{name}.log"
        self.program: Program | None = None

    @property
    def log(self) -> str:
        """What it has said, over all its runs."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self.program is not None and self.program.exit_code is None

    def launch(self) -> None:
        """Starts it, and does not wait."""
        self.program = Program(
            *("up", "--config", str(self._config), "--store", self.store),
            *("--grpc", self.target, "--http", f"127.0.0.1:{self.gateway.port}"),
            # Programs of tests stop at once otherwise.
            *("--stop-delay", "1"),
            log=self._log,
        )

    def wait_ready(self) -> None:
        """Waits until it serves turns."""
        assert self.program is not None
        self.program.wait_for(r"HTTP ready on (\S+)", seconds=40)
        wait_until(lambda: is_ready(self.gateway), seconds=40, what=f"{self.name} is ready")

    def start(self) -> None:
        """Starts it, and waits until it serves turns; there must be engines."""
        self.launch()
        self.wait_ready()

    def kill(self) -> None:
        """Ends it at once."""
        assert self.program is not None
        self.program.kill()

    def stop(self) -> int:
        """Asks it to end; returns its exit code."""
        assert self.program is not None
        return self.program.stop(seconds=40)

    def leases(self) -> dict[str, Lease]:
        """The live leases that it lists, by name."""
        with SyncPlane(self.target) as plane:
            return {lease.name: lease for lease in plane.each(plane.leases.list())}

    def engines(self) -> dict[str, Engine]:
        """The engines that it lists, by name."""
        with SyncPlane(self.target) as plane:
            return {engine.name: engine for engine in plane.each(plane.engines.list())}


class Deployment:
    """Replicas, engines, and the ways between them and to etcd.

    Args:
        folder: For settings and logs.
        etcd: Ports of etcd's nodes; none for the embedded store.
        proxies: Makes the ways.
        count: How many replicas.
        settings: Of each, TOML.

    """

    def __init__(
        self,
        folder: Path,
        *,
        etcd: Sequence[int],
        proxies: TcpProxies,
        count: int = 3,
        settings: str = SETTINGS,
    ) -> None:
        self._folder = folder
        self.to_etcd: dict[str, list[TcpProxy]] = {}
        self.replicas: list[Replica] = []
        self.from_engines: dict[str, TcpProxy] = {}
        for number in range(count):
            name = f"replica-{number}"
            ways = [proxies.to(port) for port in etcd]
            self.to_etcd[name] = ways
            store = "etcd://" + ",".join(way.target for way in ways) if ways else "memory"
            replica = Replica(name, folder, settings=settings, store=store)
            self.replicas.append(replica)
            self.from_engines[name] = proxies.to(replica.port)
        self.engines: list[SimProcess] = []

    @property
    def gateways(self) -> list[Gateway]:
        """All of them, whether they run or not."""
        return [replica.gateway for replica in self.replicas]

    @property
    def targets(self) -> dict[str, str]:
        """gRPC addresses of the replicas, past the proxies, by name."""
        return {replica.name: replica.target for replica in self.replicas}

    def start(self, *, decode: int = 2) -> None:
        """Starts everything, and waits until all replicas serve turns."""
        for replica in self.replicas:
            replica.launch()
        plane = ",".join(way.target for way in self.from_engines.values())
        for replica in self.replicas:
            assert replica.program is not None
            replica.program.wait_for(r"gRPC ready on (\S+)", seconds=40)
        for name in ("prefill-0", *(f"decode-{number}" for number in range(decode))):
            role = name.partition("-")[0]
            self.engines.append(
                start_sim(role, plane=plane, folder=self._folder, name=name, options=_SPEED)
            )
        for replica in self.replicas:
            replica.wait_ready()

    def stop(self) -> None:
        """Ends all processes."""
        for engine in self.engines:
            engine.program.kill()
        for replica in self.replicas:
            if replica.program is not None:
                replica.program.kill()

    def busiest(self) -> Replica:
        """The replica that most engines are connected to."""
        return max(self.replicas, key=lambda one: self.from_engines[one.name].connections)

    def cut_from_etcd(self, replica: Replica) -> None:
        """Nothing passes between a replica and etcd."""
        for way in self.to_etcd[replica.name]:
            way.cut()

    def cut_from_engines(self, replica: Replica) -> None:
        """No heartbeat reaches a replica, and no answer comes back."""
        self.from_engines[replica.name].cut()

    def mend(self) -> None:
        """All ways are open again."""
        for way in (
            *self.from_engines.values(),
            *(w for ways in self.to_etcd.values() for w in ways),
        ):
            way.mend()

    def held(self) -> list[Holding]:
        """What the engines say that they hold."""
        return [holding for engine in self.engines for holding in holdings(engine)]

    def disagreement(self) -> str:
        """How replicas and engines differ, or an empty text."""
        held = self.held()
        wanted = {
            (one.lease, one.fencing_token, f"engines/{one.engine}", one.retention_id)
            for one in held
            if not one.releasing
        }
        sessions = [one.session for one in held if not one.releasing]
        twice = {session for session in sessions if sessions.count(session) > 1}
        if twice:
            return f"more than one retention is kept for {twice}"
        names = {f"engines/{engine.name}" for engine in self.engines}
        for replica in self.replicas:
            try:
                leases = replica.leases().values()
                engines = replica.engines().values()
            except KvplaneClientError as error:
                return f"{replica.name} does not answer: {error}"
            active = {
                (one.name, one.fencing_token, one.engine, one.retention_id)
                for one in leases
                if one.state == Lease.STATE_ACTIVE
            }
            if active != wanted:
                return f"{replica.name} has {active - wanted} and lacks {wanted - active}"
            alive = {one.name for one in engines if one.state == Engine.STATE_ACTIVE}
            if alive != names:
                return f"{replica.name} counts on {alive}, not on {names}"
        return ""

    def wait_agreed(self, *, seconds: float = 40) -> float:
        """Waits until all replicas list what the engines hold; returns the seconds it took."""
        last = ["?"]

        def agreed() -> bool:
            last[0] = self.disagreement()
            return not last[0]

        try:
            return wait_until(agreed, seconds=seconds, what="replicas and engines agree")
        except AssertionError as error:
            raise AssertionError(f"{error}: {last[0]}") from None


def holdings(engine: SimProcess) -> list[Holding]:
    """What a simulated engine holds for sessions."""
    with urllib.request.urlopen(f"{engine.url}/sim/retentions", timeout=20) as answer:  # noqa: S310 - a simulated engine here
        found: dict[str, Any] = json.load(answer)
    return [
        Holding(
            engine=engine.name,
            retention_id=one["retention_id"],
            session=one["session_id"],
            lease=one["lease"],
            fencing_token=one["fencing_token"],
            releasing=one["releasing"],
        )
        for one in found["retentions"]
    ]


@contextmanager
def deployed(
    folder: Path, *, etcd: Sequence[int], count: int = 3, settings: str = SETTINGS
) -> Iterator[Deployment]:
    """A deployment that serves; everything ends with the block."""
    with ExitStack() as stack:
        proxies = stack.enter_context(tcp_proxies())
        deployment = Deployment(folder, etcd=etcd, proxies=proxies, count=count, settings=settings)
        stack.callback(deployment.stop)
        deployment.start()
        yield deployment
