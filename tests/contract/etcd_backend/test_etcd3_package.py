"""What is particular to the client over the package etcd3."""

import subprocess
import sys
import threading

import pytest

from kvplane_services.adapters.etcd.config import EtcdConfig
from kvplane_services.adapters.etcd.etcd3_backend import Etcd3Backend
from kvplane_services.clock import SystemClock
from kvplane_services.errors import InvalidRequest
from tests.contract.etcd_backend.following import until
from tests.support.etcd import EtcdNode

BACKEND = "kvplane_services.adapters.etcd.etcd3_backend"


def run(*lines: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a process of its own, in which no warning is passed over."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_leaves_the_names_of_etcd_to_others() -> None:
    """Both our clients are in one process, and yet another client finds its names free."""
    ran = run(
        f"import {BACKEND}, kvplane_services.adapters.etcd.grpc_backend",
        "from google.protobuf import descriptor_pb2, descriptor_pool",
        "for package in ('etcdserverpb', 'mvccpb', 'authpb'):",
        "    file = descriptor_pb2.FileDescriptorProto(name=package, package=package)",
        "    for name in ('KeyValue', 'Event', 'RangeRequest', 'User', 'Compare'):",
        "        file.message_type.add(name=name)",
        "    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())",
    )

    assert ran.returncode == 0, ran.stderr


def test_package_that_is_not_installed() -> None:
    """One line says what to install, and that is all that happens."""
    ran = run(
        "import sys",
        "sys.modules['etcd3'] = None",
        "sys.argv = ['kvplane', 'leases', '--store', 'etcd3://127.0.0.1:1']",
        "from kvplane_services.cli.main import main",
        "main()",
    )

    assert ran.returncode == 1
    [line] = ran.stderr.splitlines()
    assert "pip install 'kvplane[etcd3]'" in line


def test_package_that_somebody_imported_before() -> None:
    """Messages that are not ours are noticed at once, not in the middle of a call."""
    ran = run(
        "import sys, types",
        "etcd3 = sys.modules['etcd3'] = types.ModuleType('etcd3')",
        "etcd3.etcdrpc = types.SimpleNamespace(WatchRequest=object)",
        f"import {BACKEND}",
    )

    assert ran.returncode == 1
    assert "etcd3 was imported before kvplane could" in ran.stderr.splitlines()[-1]


def test_one_endpoint() -> None:
    """Several are refused, in words that say what to use."""
    with pytest.raises(InvalidRequest, match=r"takes one endpoint, not a:1,b:2: .* etcd://"):
        Etcd3Backend(EtcdConfig(("a:1", "b:2")), clock=SystemClock())


async def test_nothing_is_left_of_a_closed_client(etcd_node: EtcdNode) -> None:
    """Its threads end, those of watches too, which the package itself keeps for ever."""
    before = set(threading.enumerate())
    backend = Etcd3Backend(EtcdConfig((etcd_node.endpoint,)), clock=SystemClock())
    header = await backend.connect()
    watches = [backend.watch(b"/x/", start_revision=header.revision + 1) for _ in range(3)]
    for watch in watches:
        await anext(watch)
    assert {thread.name[:5] for thread in set(threading.enumerate()) - before} >= {"etcd3"}

    await backend.close()

    await until(
        lambda: (
            not [
                thread
                for thread in set(threading.enumerate()) - before
                if thread.name.startswith("etcd3")
            ]
        )
    )
