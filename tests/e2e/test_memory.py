"""More conversations than a decode engine has memory for: none of them waits for long."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvplane.api.lease.v1.lease_pb2 import RENEWAL_OUTCOME_RENEWED, LeaseRenewal
from kvplane.client.engine_wire import duration_of
from kvplane.client.sync import SyncPlane
from tests.e2e.crowd import hold
from tests.e2e.stage import SETTINGS, SYSTEM, TOKENS, Stage
from tests.support.programs import wait_until
from tests.support.sim_engines import SimPair
from tests.support.vllm_engines import recomputed

QUESTIONS = ("Where did it fail?", "And why?", "How do I fix it?")
# Seconds; the shortest that a plane takes.
TTL = 6
MARGIN = 4
# Of 16 tokens. A turn takes about 40: two conversations fit, four do not.
BLOCKS = 100
# A budget of everything and claims that outlive the test: nothing but need ends a lease early.
PLANE = f"""
{SETTINGS}
[leases]
ttl = {TTL}
retention_budget = 1
[router]
longest_claim = 600
"""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path, settings=PLANE, options=("--blocks", str(BLOCKS)))
    try:
        stage.start()
        yield stage
    finally:
        stage.stop()


def test_a_crowd_does_not_wait_for_its_own_leases(small: Stage) -> None:
    """All turns of four conversations at once end within two TTLs, one a leg, and are right."""
    turns = hold(
        small.plane.url,
        systems=tuple(f"{number}. {SYSTEM}" for number in range(4)),
        questions=QUESTIONS,
        max_tokens=TOKENS,
    )

    assert len(turns) == 12
    assert max(turn.seconds for turn in turns) < 2 * TTL + MARGIN
    # Turns that ended while others waited left nothing for these to wait for.
    assert 0 < len(small.leases(include_ended=True)) < len(turns)
    pair = SimPair(small.engines["prefill"], small.engines["decode"])
    for turn in turns:
        assert turn.text == recomputed(pair, turn.messages, max_tokens=TOKENS).text


def test_claimed_leases_make_way_within_a_ttl(small: Stage) -> None:
    """Sessions that are kept for ten minutes hold all memory; one more turn takes a TTL of them."""
    hold(
        small.plane.url,
        systems=tuple(f"{number}. {SYSTEM}" for number in range(2)),
        questions=QUESTIONS[:1],
        max_tokens=TOKENS,
    )
    wait_until(lambda: len(small.leases()) == 2, seconds=5, what="two leases")
    renewals = [
        LeaseRenewal(name=lease.name, fencing_token=lease.fencing_token, ttl=duration_of(600))
        for lease in small.leases()
    ]
    with SyncPlane(small.plane.target) as plane:
        claimed = plane.run(plane.leases.renew("people/me", renewals))
    assert {one.outcome for one in claimed.results} == {RENEWAL_OUTCOME_RENEWED}

    (turn,) = hold(
        small.plane.url, systems=(f"9. {SYSTEM}",), questions=QUESTIONS[:1], max_tokens=TOKENS
    )

    assert turn.seconds < TTL + MARGIN
