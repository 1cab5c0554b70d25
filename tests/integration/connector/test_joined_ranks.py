"""The news of an engine's tensor ranks, joined by vLLM itself."""

import json
import os
import subprocess

import pytest

from tests.support.vllm_engines import IMPORT_PATHS, ROOT, engine_python

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(180)]

JOINED = ROOT / "tests" / "support" / "in_engines" / "joined_ranks.py"


def test_the_scheduler_hears_what_holds_for_every_rank() -> None:
    """A deadline is the earliest that all keep, a retention over when it is so for all."""
    ran = subprocess.run(
        [engine_python(), JOINED],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, IMPORT_PATHS))},
        capture_output=True,
        text=True,
        timeout=170,
        check=True,
    )

    assert json.loads(ran.stdout.strip().splitlines()[-1]) == [
        {"over": [], "reads": {"it": 2}, "applied": {"it": 8.0}},
        {"over": [], "reads": {"it": 3}, "applied": {}},
        {"over": [], "reads": {}, "applied": {}},
        {"over": ["it"], "reads": {}, "applied": {}},
    ]
