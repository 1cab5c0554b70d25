"""Resolves the lock files in requirements/, or with --check tells whether they need it.

Each lock file starts with a digest of what it was made from, so that the check needs no network
and does not fail because somebody released something. Versions that are already locked stay;
--upgrade takes the newest.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

LOCKS = Path("requirements")
HEADER = "# Made by `make lock` from what has this digest: "

# What uv is asked for. Later files follow the versions of earlier ones.
HASHED = ("--generate-hashes",)
SOURCES: dict[str, tuple[str, ...]] = {
    "dev.txt": ("pyproject.toml", "--extra=all", "--extra=etcd3", "--group=dev", *HASHED),
    "demo.txt": (
        *("pyproject.toml", "--extra=demo", "--group=build", *HASHED),
        "--constraints=requirements/dev.txt",
    ),
    "build.txt": ("--group=build", *HASHED, "--constraints=requirements/dev.txt"),
    "codegen.txt": ("--group=codegen", *HASHED),
    "etcd.txt": ("--group=etcd", *HASHED),
    "lock.txt": ("--group=lock", *HASHED),
    # Without hashes: torch, which they would have to cover, is installed apart.
    "engine-cpu.txt": (
        *("requirements/engine-cpu.in", "pyproject.toml", "--group=build"),
        "--excludes=requirements/engine-cpu.excludes",
    ),
}
UV = (
    *("uv", "--no-config", "pip", "compile", "--quiet"),
    *("--universal", "--python-version=3.11", "--no-emit-index-url", "--no-header"),
)


def inputs_digest(name: str) -> str:
    """Names everything that decides what is in a lock file, but for the releases of others."""
    settings = tomllib.loads(Path("pyproject.toml").read_text())
    project, asked = settings["project"], SOURCES[name]
    named = re.findall(r"requirements/[\w.-]+\.(?:in|excludes)", " ".join(asked))
    inputs: dict[str, Any] = {
        "asked": asked,
        "files": {path: Path(path).read_text() for path in named},
        "groups": [
            group_contents(settings["dependency-groups"], option.removeprefix("--group="))
            for option in asked
            if option.startswith("--group=")
        ],
        "python": project["requires-python"],
    }
    if "pyproject.toml" in asked:
        inputs["dependencies"] = project["dependencies"]
    if any(option.startswith("--extra=") for option in asked):
        inputs["extras"] = project["optional-dependencies"]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def group_contents(groups: dict[str, list[Any]], name: str) -> list[Any]:
    """What a dependency group asks for, with the groups that it includes."""
    return [
        group_contents(groups, entry["include-group"]) if isinstance(entry, dict) else entry
        for entry in groups[name]
    ]


def resolve(name: str, *, upgrade: bool) -> None:
    """Writes one lock file."""
    lock = LOCKS / name
    options = ["--upgrade"] if upgrade else []
    subprocess.run([*UV, *SOURCES[name], *options, f"--output-file={lock}"], check=True)
    lock.write_text(f"{HEADER}{inputs_digest(name)}\n{lock.read_text()}")


def stale() -> list[str]:
    """Lock files that are absent or were made from something else."""
    return [
        name
        for name in SOURCES
        if not (LOCKS / name).exists()
        or not (LOCKS / name).read_text().startswith(f"{HEADER}{inputs_digest(name)}\n")
    ]


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if one is stale")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    arguments = parser.parse_args()
    if arguments.check:
        for name in stale():
            print(f"{LOCKS / name} does not match its sources: run `make lock` and commit.")
        return 1 if stale() else 0
    for name in SOURCES:
        print(f"Resolving {LOCKS / name}", flush=True)
        resolve(name, upgrade=arguments.upgrade)
    return 0


if __name__ == "__main__":
    sys.exit(main())
