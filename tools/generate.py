"""Generates the Python code of the contracts, or with --check tells whether it is up to date.

Needs the code generation environment's programs first on PATH: `make proto` sees to that.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# Where the code of each folder of proto/ belongs, relative to the repository's root, in which
# this runs.
PACKAGES = {
    Path("kvplane/api"): Path("clients/python/kvplane/api"),
    Path("kvplane_services/etcd_api"): Path("services/kvplane_services/etcd_api"),
    Path("kvplane_services/records"): Path("services/kvplane_services/records"),
}
# Contracts of others, under package names of our own: what their services are called on the wire.
WIRE_PACKAGES = {"kvplane_services.etcd_api.v3": "etcdserverpb"}
PACKAGE_DOCSTRING = '"""Generated from proto/ by `make proto`; do not edit."""\n'


def generate(out: Path) -> None:
    """Runs buf, and makes Python packages under `out` of what it generates."""
    subprocess.run(["buf", "generate", "--output", str(out)], check=True)
    for folder in PACKAGES:
        package = out / folder
        modules = [path.relative_to(package) for path in package.rglob("*.py")]
        for parent in {parent for module in modules for parent in module.parents}:
            (package / parent / "__init__.py").write_text(PACKAGE_DOCSTRING)
    for ours, theirs in WIRE_PACKAGES.items():
        for path in Path(out, *ours.split(".")).glob("*_pb2_grpc.py"):
            path.write_text(with_wire_package(path.read_text(), ours, theirs))


def with_wire_package(code: str, ours: str, theirs: str) -> str:
    """Stubs whose services have another package on the wire than in our files."""
    return re.sub(rf"(?<=['/]){re.escape(ours)}\.(?=\w+['/])", f"{theirs}.", code)


def contents(package: Path) -> dict[str, str]:
    """Every source file of a package, by relative path."""
    paths = (*package.rglob("*.py"), *package.rglob("*.pyi"))
    return {path.relative_to(package).as_posix(): path.read_text() for path in paths}


def differences(package: Path, committed: dict[str, str], fresh: dict[str, str]) -> list[str]:
    """One line for each file of a package that is not the same in both."""
    lines: list[str] = []
    for name in sorted(committed.keys() | fresh.keys()):
        if name not in fresh:
            lines.append(f"{package / name} belongs to no contract")
        elif name not in committed:
            lines.append(f"{package / name} is missing")
        elif committed[name] != fresh[name]:
            lines.append(f"{package / name} differs")
    return lines


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail on a difference")
    check: bool = parser.parse_args().check
    with tempfile.TemporaryDirectory() as temporary:
        generate(Path(temporary))
        fresh = {package: Path(temporary, folder) for folder, package in PACKAGES.items()}
        if check:
            drift = [
                line
                for package, made in fresh.items()
                for line in differences(package, contents(package), contents(made))
            ]
            if drift:
                print(*drift, sep="\n")
                print("The generated code does not match proto/: run `make proto` and commit.")
            return 1 if drift else 0
        for package, made in fresh.items():
            shutil.rmtree(package, ignore_errors=True)
            shutil.copytree(made, package)
    return 0


if __name__ == "__main__":
    sys.exit(main())
