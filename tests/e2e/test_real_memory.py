"""Real engines with memory for two of four conversations: every turn ends soon, and is right."""

import asyncio
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from kvplane.api.lease.v1 import lease_pb2
from kvplane.client.engine_wire import duration_of
from kvplane.client.sync import SyncPlane
from kvplane_services.local.engines import EnginePair, make_model, prefill_and_decode
from tests.e2e.crowd import hold
from tests.e2e.stage import SETTINGS, SYSTEM, TOKENS
from tests.support.plane_process import PlaneProcess
from tests.support.programs import wait_until
from tests.support.vllm_engines import IMPORT_PATHS, engine_python, metric, recomputed, started

# The first test waits for the engines.
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(420)]

QUESTIONS = ("Where did it fail?", "And why?", "How do I fix it?")
# Seconds; the shortest that a plane takes.
TTL = 6
# What computing takes on a small machine; TTL + MARGIN is an edge of vLLM's histograms.
MARGIN = 4
# Of 128 tokens. A turn takes about 27.
BLOCKS = 60
# A budget of everything and claims that outlive the test: nothing but need ends a lease early.
PLANE = f"""
{SETTINGS}
[leases]
ttl = {TTL}
retention_budget = 1
idle_keep = 20
[router]
longest_claim = 600
"""


@dataclass(frozen=True, slots=True)
class Deployment:
    """A running plane and its two engines."""

    plane: PlaneProcess
    pair: EnginePair


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("memory")
    model = folder / "model"
    asyncio.run(make_model(engine_python=engine_python(), folder=model, import_paths=IMPORT_PATHS))
    plane = PlaneProcess(folder, PLANE)
    plane.start()
    try:
        options = [
            dataclasses.replace(one, blocks=BLOCKS, max_tokens=4096)
            for one in prefill_and_decode(model_dir=model, plane=plane.target)
        ]
        with started(options, folder / "logs") as (prefill, decode):
            wait_until(lambda: _registered(plane) == 2, seconds=30, what="both are registered")
            yield Deployment(plane, EnginePair(prefill, decode))
    finally:
        plane.stop()


def _registered(plane: PlaneProcess) -> int:
    with SyncPlane(plane.target) as client:
        return len(list(client.each(client.engines.list())))


def _system(number: int) -> str:
    return f"{number}. " + SYSTEM * 6


def test_a_crowd_does_not_wait_for_its_own_leases(deployment: Deployment) -> None:
    """No leg of four conversations at once waits for more than a TTL; answers are recompute's."""
    turns = hold(
        deployment.plane.url,
        systems=tuple(_system(number) for number in range(4)),
        questions=QUESTIONS,
        max_tokens=TOKENS,
    )

    assert len(turns) == 12
    assert max(turn.seconds for turn in turns) < 2 * (TTL + MARGIN)
    for engine in (deployment.pair.prefill, deployment.pair.decode):
        waits = "vllm:request_queue_time_seconds"
        soon = metric(engine, f"{waits}_bucket", le=f"{TTL + MARGIN:.1f}")
        assert soon == metric(engine, f"{waits}_count") >= 12
    with SyncPlane(deployment.plane.target) as plane:
        left = list(plane.each(plane.leases.list(include_ended=True)))
    # Turns that ended while others waited left nothing, or what these could take at once.
    assert 0 < len(left) <= len(turns)
    taken = [one for one in left if one.end_reason == lease_pb2.END_REASON_RECLAIMED]
    assert taken or len(left) < len(turns)
    for turn in turns:
        expected = recomputed(deployment.pair, turn.messages, max_tokens=TOKENS)
        assert expected.prompt_tokens > 20 * 128
        assert turn.text == expected.text


def test_claimed_leases_make_way_within_a_ttl(deployment: Deployment) -> None:
    """Sessions that are kept for ten minutes hold all memory; one more turn takes a TTL of them."""
    with SyncPlane(deployment.plane.target) as plane:
        wait_until(
            lambda: not list(plane.each(plane.leases.list())),
            seconds=180,
            what="what other tests left is over",
        )
        hold(
            deployment.plane.url,
            systems=(_system(7), _system(8)),
            questions=QUESTIONS[:1],
            max_tokens=TOKENS,
        )
        wait_until(
            lambda: len(list(plane.each(plane.leases.list()))) == 2, seconds=5, what="two leases"
        )
        renewals = [
            lease_pb2.LeaseRenewal(
                name=lease.name, fencing_token=lease.fencing_token, ttl=duration_of(600)
            )
            for lease in plane.each(plane.leases.list())
        ]
        claimed = plane.run(plane.leases.renew("people/me", renewals))
    assert {one.outcome for one in claimed.results} == {lease_pb2.RENEWAL_OUTCOME_RENEWED}

    (turn,) = hold(
        deployment.plane.url, systems=(_system(9),), questions=QUESTIONS[:1], max_tokens=TOKENS
    )

    assert turn.seconds < TTL + MARGIN
    assert turn.text == recomputed(deployment.pair, turn.messages, max_tokens=TOKENS).text
