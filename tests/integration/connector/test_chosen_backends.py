"""What operators hear of the NIXL backends that they choose, from a real NIXL."""

import os
import subprocess

import pytest

from tests.support.vllm_engines import IMPORT_PATHS, ROOT, engine_python

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(120)]

CHOICE = ROOT / "tests" / "support" / "in_engines" / "chosen_backends.py"


def _told(*backends: str) -> str:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, IMPORT_PATHS)),
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": "lo",
        "NIXL_LOG_LEVEL": "FATAL",
    }
    ran = subprocess.run(
        [engine_python(), CHOICE, *backends],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return " ".join(line for line in ran.stdout.splitlines() if line.startswith("NIXL "))


def test_the_default_is_there() -> None:
    """NIXL makes its agent with UCX, and nothing is said."""
    assert _told("UCX") == ""


def test_a_backend_that_cannot_be_made_is_not_passed_over() -> None:
    """A name that NIXL knows no plug-in for ends the start, although NIXL goes on."""
    assert "no plug-in for the backend NOSUCH" in _told("NOSUCH")


def test_libfabric_is_made_or_says_what_it_needs() -> None:
    """With a provider LIBFABRIC is as good as UCX; without one it says so."""
    told = _told("LIBFABRIC")

    assert told == "" or "LIBFABRIC needs libfabric with a provider" in told
