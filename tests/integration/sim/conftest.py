"""Simulated engines as processes, without a plane."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sim_engines import SimPair, SimProcess, start_sim


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SimProcess]:
    started = start_sim("both", plane="", folder=tmp_path)
    yield started
    started.program.kill()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[SimPair]:
    prefill = start_sim("prefill", plane="", folder=tmp_path, options=("--no-prefix-caching",))
    decode = start_sim("decode", plane="", folder=tmp_path)
    yield SimPair(prefill, decode)
    for one in (prefill, decode):
        one.program.kill()
