"""The wheel holds our three packages and nothing else."""

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"kvplane", "kvplane_connector", "kvplane_services"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built from the checkout as users build it."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    [built] = out.glob("*.whl")
    return built


@pytest.fixture
def archive(wheel: Path) -> Iterator[zipfile.ZipFile]:
    """The wheel, opened."""
    with zipfile.ZipFile(wheel) as opened:
        yield opened


def metadata_folder(archive: zipfile.ZipFile) -> str:
    """The one folder that describes the wheel."""
    [folder] = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
    return folder


def test_top_level_names(archive: zipfile.ZipFile) -> None:
    """Installing the wheel adds exactly three importable names."""
    top = {name.split("/")[0] for name in archive.namelist()}
    assert top - {metadata_folder(archive)} == PACKAGES


def test_packages_are_whole(archive: zipfile.ZipFile) -> None:
    """Every source file of the checkout that git does not ignore is in the wheel."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    prefixes = ("clients/python/", "connector/", "services/")
    sources = {
        name.removeprefix(prefix)
        for name in listed
        for prefix in prefixes
        if name.startswith(prefix) and name.endswith((".py", ".pyi", "py.typed"))
    }
    expected = {name for name in sources if name.split("/")[0] in PACKAGES}
    assert expected - set(archive.namelist()) == set()


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_types_are_shipped(archive: zipfile.ZipFile, package: str) -> None:
    """Type checkers may use each package's annotations (PEP 561)."""
    assert f"{package}/py.typed" in archive.namelist()


@pytest.mark.parametrize(
    "generated", ["kvplane/api/", "kvplane_services/etcd_api/", "kvplane_services/records/"]
)
def test_generated_code_is_a_regular_package(archive: zipfile.ZipFile, generated: str) -> None:
    """Each generated folder is a package, so that tools that dislike namespaces see it."""
    folders = {name.rsplit("/", 1)[0] for name in archive.namelist() if name.startswith(generated)}
    assert folders
    assert {f"{folder}/__init__.py" for folder in folders} <= set(archive.namelist())


def test_licence_and_command(archive: zipfile.ZipFile) -> None:
    """The wheel carries its licence and notices, and installs the command `kvplane`."""
    folder = metadata_folder(archive)
    metadata = Parser().parsestr(archive.read(f"{folder}/METADATA").decode())
    assert metadata["License-Expression"] == "Apache-2.0"
    assert {f"{folder}/licenses/{name}" for name in ("LICENSE", "NOTICE")} <= set(
        archive.namelist()
    )
    # Named by the documents, whether or not it adds a package.
    assert "etcd" in (metadata.get_all("Provides-Extra") or [])
    entry_points = archive.read(f"{folder}/entry_points.txt").decode()
    assert "kvplane = kvplane_services.cli.main:main" in entry_points


def test_wheel_imports(wheel: Path) -> None:
    """Each package imports from the wheel itself, not only from the checkout."""
    script = (
        "import sys\n"
        f"sys.path.insert(0, {str(wheel)!r})\n"
        f"import {', '.join(sorted(PACKAGES))}, kvplane.api.engine.v1.engine_pb2_grpc\n"
        "import kvplane_services.etcd_api.v3.rpc_pb2_grpc\n"
        "print(*(m.__file__ for m in (kvplane, kvplane_connector, kvplane_services)), sep='\\n')\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert [line.startswith(str(wheel)) for line in ran.stdout.splitlines()] == [True] * 3
