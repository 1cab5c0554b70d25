"""Real etcd servers, for tests: single nodes and clusters on free loopback ports.

Methods block until what they do is done; in a test whose other tasks must go on meanwhile, run
them with `asyncio.to_thread`.
"""

import base64
import json
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.certificates import ServerTls
from tests.support.programs import wait_until

BINARY = Path(__file__).resolve().parents[2] / ".build" / "etcd" / "etcd"
# Below the ports that systems take for outgoing connections, so that a port stays free while the
# etcd that had it is down.
_PORTS = range(12_000, 32_000)
# Each node lays out its log in files of 64 MB; few containers have much more shared memory.
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - holds a private folder
_SHARED_MEMORY_NEEDED = 1 << 30
# A node alone elects itself as soon as it may: restarts are quick, and leases last from 1 s on.
_ALONE = ("--heartbeat-interval=10", "--election-timeout=100")
# Seconds; generous, since test machines are busy.
_START = 40.0
_ANSWER = 10.0

_handed_out: set[int] = set()


def etcd_binary() -> Path:
    """The server that `make etcd-env` got."""
    found = BINARY if BINARY.exists() else shutil.which("etcd")
    if found is None:
        raise AssertionError("Tests need an etcd server: run `make etcd-env` to get one.")
    return Path(found)


def free_port() -> int:
    """A loopback port that nobody listens on, and that nobody is likely to take."""
    while True:
        port = random.choice(_PORTS)
        if port in _handed_out:
            continue
        with socket.socket() as listener, suppress(OSError):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            _handed_out.add(port)
            return port


class EtcdNode:
    """One etcd; its ports and data stay the same over restarts.

    Args:
        folder: For its data and log.
        name: Of the member.
        tls: How it encrypts; None for plain text.
        arguments: More flags of etcd.

    """

    def __init__(
        self,
        folder: Path,
        *,
        name: str = "etcd",
        tls: ServerTls | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.port = free_port()
        self.endpoint = f"127.0.0.1:{self.port}"
        self.peer_url = f"http://127.0.0.1:{free_port()}"
        self.status_endpoint = f"127.0.0.1:{free_port()}"
        self._folder = folder / name
        self._folder.mkdir(parents=True)
        self._data = self._folder / "data"
        self._scheme = "https" if tls else "http"
        self._arguments = [*arguments, *(tls.arguments(self._folder) if tls else [])]
        self._process: subprocess.Popen[bytes] | None = None
        self.members: Mapping[str, str] = {name: self.peer_url}

    @property
    def log(self) -> str:
        """What it has said, over all its runs."""
        path = self._folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def running(self) -> bool:
        """Whether there is a process, stopped by a signal or not."""
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Starts the process, and does not wait for it to serve."""
        assert not self.running
        url = f"{self._scheme}://{self.endpoint}"
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(str(etcd_binary()), f"--name={self.name}", f"--data-dir={self._data}"),
                    *(f"--listen-client-urls={url}", f"--advertise-client-urls={url}"),
                    f"--listen-peer-urls={self.peer_url}",
                    f"--initial-advertise-peer-urls={self.peer_url}",
                    "--initial-cluster=" + ",".join(f"{k}={v}" for k, v in self.members.items()),
                    f"--initial-cluster-token={self._folder.parent.name}",
                    *(f"--listen-metrics-urls=http://{self.status_endpoint}", "--logger=zap"),
                    *self._arguments,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_ready(self) -> None:
        """Waits until it serves: there is a leader, and a quorum."""

        def healthy() -> bool:
            assert self.running, f"etcd ended:\n{self.log[-2000:]}"
            try:
                health: dict[str, Any] = json.loads(self._status("/health"))
            except (OSError, ValueError):
                return False
            return health.get("health") == "true"

        wait_until(healthy, seconds=_START, what=f"{self.name} serves")

    def start(self) -> None:
        """Starts it, and waits until it serves."""
        self.launch()
        self.wait_ready()

    def stop(self) -> None:
        """Asks it to end, and waits; does nothing if it does not run."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it at once; does nothing if it does not run."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Stops it with its connections open: it answers nothing from here on."""
        self._signal(signal.SIGSTOP)
        assert self._process is not None
        threads = Path(f"/proc/{self._process.pid}/task")

        def stopped() -> bool:
            # Each runs on until the signal has reached it.
            states = [(thread / "stat").read_text() for thread in threads.iterdir()]
            return all(state.rpartition(")")[2].split()[0] == "T" for state in states)

        wait_until(stopped, seconds=_ANSWER, what=f"{self.name} stands still")

    def resume(self) -> None:
        """Goes on after `pause`."""
        self._signal(signal.SIGCONT)

    def wipe(self) -> None:
        """Loses its data; it must not run."""
        assert not self.running
        shutil.rmtree(self._data, ignore_errors=True)

    @property
    def leads(self) -> bool:
        """Whether it takes itself for the leader. False if it does not answer."""
        try:
            return "\netcd_server_is_leader 1\n" in self._status("/metrics")
        except OSError:
            return False

    def call(
        self, path: str, body: Mapping[str, Any] | None = None, *, token: str = ""
    ) -> dict[str, Any]:
        """Calls etcd's JSON API, as in `call("kv/compaction", {"revision": 5})`; not with TLS.

        Values of bytes are base64. Raises AssertionError with etcd's own words if it refuses.
        """
        assert self._scheme == "http"
        request = urllib.request.Request(
            f"http://{self.endpoint}/v3/{path}",
            json.dumps(body or {}).encode(),
            headers={"Authorization": token} if token else {},
            method="POST",
        )
        try:
            answer: dict[str, Any] = json.loads(_open(request))
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.read().decode()}") from error
        return answer

    def call_as(
        self, user: str, password: str, path: str, body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """As `call`, where etcd wants a password."""
        answer = self.call("auth/authenticate", {"name": user, "password": password})
        return self.call(path, body, token=answer["token"])

    def compact(self) -> int:
        """Forgets all history but the newest revision, which it returns."""
        revision = int(self.call("maintenance/status")["header"]["revision"])
        self.call("kv/compaction", {"revision": revision, "physical": True})
        return revision

    def enable_auth(self, user: str, password: str, *, prefix: str) -> None:
        """From here on etcd wants `password`: root may do everything, `user` only `prefix`."""
        self.call("auth/role/add", {"name": "root"})
        self.call("auth/user/add", {"name": "root", "password": password})
        self.call("auth/user/grant", {"user": "root", "role": "root"})
        self.call("auth/role/add", {"name": user})
        self.call("auth/user/add", {"name": user, "password": password})
        self.call("auth/user/grant", {"user": user, "role": user})
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        keys = {"key": _base64(prefix), "range_end": _base64(end)}
        self.call("auth/role/grant", {"name": user, "perm": {"permType": "READWRITE", **keys}})
        self.call("auth/enable")

    def _status(self, path: str) -> str:
        url = f"http://{self.status_endpoint}{path}"
        return _open(urllib.request.Request(url))

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._signal(number)
        self._signal(signal.SIGCONT)
        try:
            self._process.wait(_ANSWER)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()


@contextmanager
def etcd_folder() -> Iterator[Path]:
    """A folder for etcds' data, in memory where there is enough of it."""
    where = None
    with suppress(OSError):
        if shutil.disk_usage(_SHARED_MEMORY).free > _SHARED_MEMORY_NEEDED:
            where = _SHARED_MEMORY
    with tempfile.TemporaryDirectory(prefix="kvplane-etcd-", dir=where) as folder:
        yield Path(folder)


@contextmanager
def running_node(
    *, tls: ServerTls | None = None, arguments: Sequence[str] = ()
) -> Iterator[EtcdNode]:
    """A fresh etcd of one node that serves; it is ended, and its data removed, at the end."""
    with etcd_folder() as folder:
        node = EtcdNode(folder, tls=tls, arguments=(*_ALONE, *arguments))
        try:
            node.start()
            yield node
        finally:
            node.kill()


def _open(request: urllib.request.Request) -> str:
    # No proxy: it is our own machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=_ANSWER) as answer:
        body: bytes = answer.read()
        return body.decode()


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
