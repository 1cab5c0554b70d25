"""Fetches what the connector touches of the sources of each vLLM that it supports.

Puts them into .build/vllm-sources/VERSION: the newest patch of every minor version from the oldest
supported one to the newest that pip's index has. Only these files are read out of the wheels,
which are large. Which index, and how it is reached, is pip's configuration to say. Without a
network, what was fetched earlier is used.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import requests
from packaging.version import Version
from remotezip import RemoteZip

from kvplane_connector.versions import OLDEST

FOLDER = Path(".build/vllm-sources")
# Modules and packages, as their files' names begin; and the packages that these are in.
WANTED = (
    "vllm/_version.py",
    "vllm/version.py",
    "vllm/config/kv_transfer.py",
    "vllm/config/parallel.py",
    "vllm/distributed/device_communicators/shm_broadcast.py",
    "vllm/distributed/kv_transfer/kv_connector/utils.py",
    "vllm/distributed/kv_transfer/kv_connector/v1/base.py",
    "vllm/distributed/kv_transfer/kv_connector/v1/metrics.py",
    "vllm/distributed/kv_transfer/kv_connector/v1/nixl/",
    "vllm/distributed/nixl_utils.py",
    "vllm/v1/core/block_pool.py",
    "vllm/v1/core/kv_cache_manager.py",
    "vllm/v1/core/sched/",
    "vllm/v1/engine/core.py",
    "vllm/v1/outputs.py",
    "vllm/v1/request.py",
)
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
WHEELS = "--only-binary=:all:"
ATTEMPTS = 3


class Missing(Exception):
    """The sources are not to be had; the message is one line."""


class _Session(requests.Session):
    """Trusts whom pip trusts."""

    def __init__(self) -> None:
        super().__init__()
        if certificates := _pip_setting("cert"):
            self.verify = certificates

    def __enter__(self) -> Self:
        return self


def newest_patches(versions: Iterable[str]) -> list[str]:
    """The newest release of each supported minor version, oldest first."""
    newest: dict[tuple[int, int], Version] = {}
    for version in map(Version, versions):
        minor = (version.major, version.minor)
        if minor >= OLDEST and not version.is_prerelease:
            newest[minor] = max(version, newest.get(minor, version))
    return [str(version) for _, version in sorted(newest.items())]


def is_wanted(name: str) -> bool:
    """Whether a file of a wheel is to be read."""
    package, _, module = name.rpartition("/")
    above = module == "__init__.py" and any(one.startswith(f"{package}/") for one in WANTED)
    return above or (name.endswith(".py") and name.startswith(WANTED))


def released() -> list[str]:
    """Every version that the index has."""
    told = _pip("index", "versions", "vllm", WHEELS)
    for line in told.splitlines():
        if line.startswith("Available versions:"):
            return [one.strip() for one in line.partition(":")[2].split(",")]
    raise Missing("pip's index has no vllm")


def fetch(version: str) -> None:
    """Puts the sources of one version into its folder, whole or not at all."""
    folder = FOLDER / version
    if _is_there(version):
        return
    partial = FOLDER / f".{version}.{os.getpid()}"
    shutil.rmtree(partial, ignore_errors=True)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with _Session() as session, RemoteZip(_wheel(version), session=session) as wheel:
                for name in wheel.namelist():
                    if is_wanted(name):
                        (partial / name).parent.mkdir(parents=True, exist_ok=True)
                        (partial / name).write_bytes(wheel.read(name))
            break
        except requests.RequestException as error:
            if attempt == ATTEMPTS:
                raise Missing(f"vLLM {version}'s wheel cannot be read ({error})") from error
            time.sleep(attempt)
    (partial / "wanted").write_text("\n".join(WANTED))
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def _is_there(version: str) -> bool:
    stamp = FOLDER / version / "wanted"
    return stamp.exists() and stamp.read_text() == "\n".join(WANTED)


def _wheel(version: str) -> str:
    report: dict[str, Any] = json.loads(
        _pip(
            *("install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet"),
            *("--report=-", WHEELS, f"vllm=={version}"),
        )
    )
    url: str = report["install"][0]["download_info"]["url"]
    return url


def _pip(*arguments: str) -> str:
    ran = subprocess.run([*PIP, *arguments], capture_output=True, text=True, check=False)
    if ran.returncode:
        last = ran.stderr.strip().splitlines()[-1:] or ["it says nothing"]
        raise Missing(f"pip {arguments[0]} failed: {last[0]}")
    return ran.stdout


def _pip_setting(name: str) -> str | None:
    for line in _pip("config", "list").splitlines():
        key, _, value = line.partition("=")
        if key.rpartition(".")[2] == name:
            return value.strip("'\"")
    return None


def main() -> int:
    """Fetches what is not there; returns the exit status."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        wanted = newest_patches(released())
        if missing := [one for one in wanted if not _is_there(one)]:
            print(f"kvplane: reading the sources of vLLM {', '.join(missing)} ...", flush=True)
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(fetch, wanted))
    except Missing as error:
        if not any(FOLDER.glob("*/wanted")):
            print(f"kvplane: {error}", file=sys.stderr)
            return 1
        print(f"kvplane: {error}; going on with the sources that are there", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
