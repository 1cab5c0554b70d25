"""The contracts in proto/ are clean, documented, and what the generated code was made from."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvplane_services.etcd_api.v3 import auth_pb2, kv_pb2, rpc_pb2, rpc_pb2_grpc

ROOT = Path(__file__).resolve().parents[2]
ENGINE_PROTO = Path("proto/kvplane/api/engine/v1/engine.proto")
PROGRAMS = Path(sys.executable).parent
CODEGEN = ROOT / ".build" / "codegen" / "bin"

# A field that the tests below change: its comment, its place, its neighbour.
FIELD = "  int32 data_parallel_rank = 10;\n"
COMMENT = "  // Optional. Data-parallel rank at `endpoint`; 0 for the only one.\n"


class RecordingChannel:
    """A channel that notes which methods a stub would call."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def _note(self, path: str, **_: object) -> None:
        self.paths.append(path)

    unary_unary = unary_stream = stream_unary = stream_stream = _note


def run(command: Sequence[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    """Runs a program of the code generation environment (`make codegen-env`) or of this one."""
    path = os.pathsep.join([str(CODEGEN), os.environ["PATH"], str(PROGRAMS)])
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the contracts, their settings and their generated code, to change at will."""
    for name in (
        "proto",
        "tools",
        "clients/python/kvplane/api",
        "services/kvplane_services/etcd_api",
        "services/kvplane_services/records",
    ):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("buf.yaml", "buf.gen.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def edit(copy: Path, old: str, new: str) -> None:
    """Changes the one place of the engine contract that reads `old`."""
    path = copy / ENGINE_PROTO
    text = path.read_text()
    assert text.count(old) == 1, f"{old!r} is in {path.name} {text.count(old)} times"
    path.write_text(text.replace(old, new))


def test_lint() -> None:
    """Buf's standard rules hold, and every service, RPC, message, field and enum has a comment."""
    ran = run(["buf", "lint"], ROOT)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_lint_misses_no_comment(copy: Path) -> None:
    """A field without a comment fails the linter."""
    edit(copy, COMMENT, "")
    ran = run(["buf", "lint"], copy)
    assert ran.returncode != 0
    assert "data_parallel_rank" in ran.stdout


def test_format() -> None:
    """The contracts are formatted as buf formats them."""
    ran = run(["buf", "format", "--diff", "--exit-code"], ROOT)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_generated_code_is_up_to_date() -> None:
    """Generating again gives the committed code, byte for byte."""
    ran = run(["python", "tools/generate.py", "--check"], ROOT)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_drift_is_seen(copy: Path) -> None:
    """A field that was added to a contract only shows up as drift."""
    edit(copy, FIELD, f"{FIELD}  // Optional. New.\n  int32 added = 4000;\n")
    ran = run(["python", "tools/generate.py", "--check"], copy)
    assert ran.returncode == 1
    assert "api/engine/v1/engine_pb2.pyi differs" in ran.stdout
    assert "make proto" in ran.stdout


def test_stray_generated_file_is_seen(copy: Path) -> None:
    """Code of a contract that no longer exists shows up as drift."""
    (copy / "clients/python/kvplane/api/engine/v1/gone_pb2.py").write_text("")
    ran = run(["python", "tools/generate.py", "--check"], copy)
    assert ran.returncode == 1
    assert "api/engine/v1/gone_pb2.py belongs to no contract" in ran.stdout


def test_generation_removes_what_is_gone(copy: Path) -> None:
    """Generating leaves nothing behind of a contract that no longer exists."""
    stray = copy / "clients/python/kvplane/api/engine/v1/gone_pb2.py"
    stray.write_text("")
    ran = run(["python", "tools/generate.py"], copy)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert not stray.exists()


def test_etcd_is_spoken_to_by_its_own_names() -> None:
    """Stubs of etcd's contract call etcd's services, though our files have a package of our own."""
    channel = RecordingChannel()
    services = {"KV", "Watch", "Lease", "Cluster", "Maintenance", "Auth"}

    for service in services:
        getattr(rpc_pb2_grpc, f"{service}Stub")(channel)

    assert {path.rsplit("/", 1)[0] for path in channel.paths} == {
        f"/etcdserverpb.{service}" for service in services
    }


def test_etcd_messages_leave_room_for_another_client() -> None:
    """No message of ours has the full name that another etcd client would register."""
    packages = {module.DESCRIPTOR.package for module in (rpc_pb2, kv_pb2, auth_pb2)}
    assert packages == {"kvplane_services.etcd_api.v3"}


def test_added_field_is_compatible(copy: Path) -> None:
    """Clients of the contracts as they are survive a field more."""
    edit(copy, FIELD, f"{FIELD}  // Optional. New.\n  int32 added = 4000;\n")
    ran = run(["buf", "breaking", "--against", str(ROOT)], copy)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(FIELD.replace("10", "4000"), id="renumbered"),
        pytest.param(FIELD.replace("int32", "string"), id="retyped"),
        pytest.param(FIELD.replace("data_parallel_rank", "renamed"), id="renamed"),
        pytest.param("", id="removed"),
    ],
)
def test_breaking_change_is_seen(copy: Path, changed: str) -> None:
    """A field that is renumbered, retyped, renamed or removed is told to break clients."""
    edit(copy, COMMENT + FIELD, COMMENT + changed if changed else "")
    ran = run(["buf", "breaking", "--against", str(ROOT)], copy)
    assert ran.returncode != 0
    assert "engine.proto" in ran.stdout
