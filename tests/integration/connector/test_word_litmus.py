"""The order of writes and reads that validated reads rest on, with two real NIXL agents."""

import json
import os
import subprocess
from typing import Any

import pytest

from tests.support.vllm_engines import IMPORT_PATHS, ROOT, engine_python

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(120)]

LITMUS = ROOT / "tests" / "support" / "in_engines" / "word_litmus.py"
TRANSPORTS = {"cma": "tcp,posix,sysv,self,cma", "tcp": "tcp,self"}


def _seen(order: str, transport: str, *, seconds: float = 1.5) -> dict[str, int]:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, IMPORT_PATHS)),
        "UCX_TLS": TRANSPORTS[transport],
        "UCX_NET_DEVICES": "lo",
    }
    found = subprocess.run(
        [engine_python(), LITMUS, order, str(seconds)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    seen: Any = json.loads(found.stdout.strip().splitlines()[-1])
    print(f"{order}, {transport}: {seen}")  # noqa: T201 - the figures, for whoever wants them
    return dict(seen)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_is_accepted_is_what_was_offered(transport: str) -> None:
    """An owner writes over its data without a pause, and no reader takes it for the old."""
    seen = _seen("correct", transport)

    assert seen["accepted"] > 0
    assert seen["other"] > 0
    assert seen["other_but_accepted"] == 0


def test_a_word_that_changes_too_late_is_noticed() -> None:
    """The test above can fail: with the owner's order reversed readers take new data for old."""
    assert _seen("late", "cma")["other_but_accepted"] > 0
