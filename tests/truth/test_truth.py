"""A hundred turns on real engines; `make truth` plays as many as you like."""

from pathlib import Path

import pytest

from kvplane_services.clock import SystemClock
from tests.truth.run import Plan
from tests.truth.wiring import SOUND, run_truth

# Starts two engines, and one of them again.
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

TURNS = 100


async def test_every_answer_is_the_recomputed_one(tmp_path: Path) -> None:
    """Whatever happens to conversations, leases and engines, answers are those without reuse."""
    report, figures = await run_truth(
        Plan(turns=TURNS, seed=1),
        connector=SOUND,
        folder=tmp_path,
        clock=SystemClock(),
        say=print,
    )

    assert report.failures() == []
    assert (report.total.turns, report.total.equal) == (TURNS, TURNS)
    assert report.total.reused_tokens > report.total.recomputed_tokens
    assert figures["restarts"] == 1
