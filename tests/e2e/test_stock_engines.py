"""Engines with vLLM's own connector: what is reused, and what is said of the rest."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvplane.api.lease.v1 import lease_pb2
from tests.e2e.stage import SYSTEM
from tests.e2e.stock_stage import Lease, StockStage, told_of
from tests.support.sim_engines import SimPair, start_sim


@pytest.fixture
def stage(tmp_path: Path, options: str) -> Iterator[StockStage]:
    engines = [
        start_sim(role, plane="", folder=tmp_path, options=("--stock", "--no-prefix-caching"))
        for role in ("prefill", "decode")
    ]
    try:
        with told_of(SimPair(*engines), tmp_path, options=options) as stage:
            yield stage
    finally:
        for engine in engines:
            engine.program.stop()


@pytest.mark.parametrize("options", [",keeps=300,trust-history"])
def test_a_trusted_history_is_read_once(stage: StockStage) -> None:
    """A turn that continues a whole answer pulls; the same turn again, or edited, recomputes."""
    stage.ask("Where did it fail?")
    lease = stage.wait_lease(1)
    assert lease.tokens > 64
    assert 200 < lease.ttl.seconds <= 300

    second = stage.ask("And why?")
    assert second.strategy == "pull"
    assert second.pulled > 0
    stage.wait_lease(2)
    taken = stage.leases()[0]
    assert (taken.state, taken.release_reason) == (
        Lease.STATE_RELEASING,
        lease_pb2.END_REASON_CONSUMED,
    )

    del stage.history[-1]
    retried = stage.again()
    assert (retried.text, retried.strategy, retried.pulled) == (second.text, "recompute", 0)

    newest = stage.wait_lease(3)
    stage.history[0] = {"role": "system", "content": SYSTEM.replace("one line", "two lines")}
    edited = stage.ask("How do I fix it?")
    assert (edited.strategy, edited.pulled) == ("recompute", 0)
    assert newest.name in {one.name for one in stage.leases() if one.release_reason}


@pytest.mark.parametrize("options", [",keeps=300,trust-history"])
def test_a_turn_that_streams_leaves_no_lease(stage: StockStage) -> None:
    """Its answer names no blocks; the next turn recomputes, and is told why."""
    first = stage.ask("Where did it fail?", stream=True)
    second = stage.ask("And why?", stream=True)

    assert (second.strategy, second.pulled) == ("recompute", 0)
    assert stage.leases() == []
    assert "answers that do not stream only, for 300 s or one read" in stage.explained(
        first.session
    )


@pytest.mark.parametrize("options", [",keeps=300"])
def test_without_trust_nothing_is_read(stage: StockStage) -> None:
    """What is kept is known, and turns go where it is; its blocks are not read."""
    first = stage.ask("Where did it fail?")
    stage.wait_lease(1)
    second = stage.ask("And why?")

    assert (second.strategy, second.pulled) == ("recompute", 0)
    stage.wait_lease(2)
    assert stage.leases()[0].release_reason == lease_pb2.END_REASON_SUPERSEDED
    assert "cannot prove that a prompt extends what was retained" in stage.explained(first.session)


@pytest.mark.parametrize("options", [""])
def test_an_engine_of_which_nobody_says_that_it_keeps_turns(stage: StockStage) -> None:
    """Turns are served, and computed anew; the explanation says so."""
    first = stage.ask("Where did it fail?")
    second = stage.ask("And why?")

    assert (second.strategy, stage.leases()) == ("recompute", [])
    assert "not known to keep turns" in stage.explained(first.session)
