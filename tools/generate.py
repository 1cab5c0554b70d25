"""Generates the Python code of the contracts, or with --check tells whether it is up to date.

Needs the code generation environment's programs first on PATH: `make proto` sees to that.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# Relative to the repository's root, in which this runs, and to buf's output folder alike.
GENERATED = Path("clients/python/kvplane/api")
PACKAGE_DOCSTRING = '"""Generated from proto/ by `make proto`; do not edit."""\n'


def generate(out: Path) -> Path:
    """Runs buf, and returns the folder under `out` that holds the code as a Python package."""
    subprocess.run(["buf", "generate", "--output", str(out)], check=True)
    package = out / GENERATED
    modules = [path.relative_to(package) for path in package.rglob("*.py")]
    for folder in {parent for module in modules for parent in module.parents}:
        (package / folder / "__init__.py").write_text(PACKAGE_DOCSTRING)
    return package


def contents(package: Path) -> dict[str, str]:
    """Every source file of a package, by relative path."""
    paths = (*package.rglob("*.py"), *package.rglob("*.pyi"))
    return {path.relative_to(package).as_posix(): path.read_text() for path in paths}


def differences(committed: dict[str, str], fresh: dict[str, str]) -> list[str]:
    """One line for each file that is not the same in both."""
    lines: list[str] = []
    for name in sorted(committed.keys() | fresh.keys()):
        if name not in fresh:
            lines.append(f"{GENERATED / name} belongs to no contract")
        elif name not in committed:
            lines.append(f"{GENERATED / name} is missing")
        elif committed[name] != fresh[name]:
            lines.append(f"{GENERATED / name} differs")
    return lines


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail on a difference")
    check: bool = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        fresh = generate(Path(folder))
        if check:
            drift = differences(contents(GENERATED), contents(fresh))
            if drift:
                print(*drift, sep="\n")
                print("The generated code does not match proto/: run `make proto` and commit.")
            return 1 if drift else 0
        shutil.rmtree(GENERATED, ignore_errors=True)
        shutil.copytree(fresh, GENERATED)
    return 0


if __name__ == "__main__":
    sys.exit(main())
