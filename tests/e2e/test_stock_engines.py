"""Engines with vLLM's own connector: what is reused, and what is said of the rest."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from openai import OpenAI, Stream
from openai.types.chat import ChatCompletionMessageParam

from kvplane.api.lease.v1 import lease_pb2
from kvplane.api.router.v1 import router_pb2
from kvplane.api.session.v1 import session_pb2
from kvplane.client.names import parse_session_name
from kvplane.client.sync import SyncPlane
from tests.e2e.stage import SYSTEM
from tests.support.plane_process import PlaneProcess
from tests.support.programs import wait_until
from tests.support.sim_engines import SimPair, start_sim
from tests.support.vllm_engines import MODEL, transferred

SETTINGS = """
engines = {engines}
[gateway]
response_headers = true
[prober]
interval = 0.2
"""
Lease = lease_pb2.Lease


@dataclass(frozen=True, slots=True)
class Said:
    """One turn, whole, and what the prefill engine read for it."""

    text: str
    strategy: str
    session: str
    pulled: int


@dataclass
class StockStage:
    """A plane and two engines that it was told of."""

    plane: PlaneProcess
    pair: SimPair
    client: OpenAI
    history: list[ChatCompletionMessageParam] = field(
        default_factory=lambda: [{"role": "system", "content": SYSTEM}]
    )

    def ask(self, question: str, *, session: str = "s", stream: bool = False) -> Said:
        """One turn; its answer becomes history."""
        self.history.append({"role": "user", "content": question})
        said = self.again(session=session, stream=stream)
        self.history.append({"role": "assistant", "content": said.text})
        return said

    def again(self, *, session: str = "s", stream: bool = False) -> Said:
        """The turn that the history ends with, once more; leaves the history as it is."""
        before = transferred(self.pair.prefill)
        answer = self.client.chat.completions.with_raw_response.create(
            model=MODEL,
            messages=self.history,
            max_tokens=24,
            temperature=0,
            stream=stream,
            extra_headers={"x-session-id": session},
        )
        body = answer.parse()
        if isinstance(body, Stream):
            text = "".join(c.delta.content or "" for chunk in body for c in chunk.choices)
        else:
            text = body.choices[0].message.content or ""
        return Said(
            text=text,
            strategy=answer.headers["x-kvplane-strategy"],
            session=answer.headers["x-kvplane-session"],
            pulled=transferred(self.pair.prefill) - before,
        )

    def leases(self) -> list[Lease]:
        """All that are remembered, oldest grant first."""
        with SyncPlane(self.plane.target) as client:
            found = client.each(client.leases.list(include_ended=True))
            return sorted(found, key=lambda lease: lease.fencing_token)

    def wait_lease(self, count: int) -> Lease:
        """Waits until so many leases were granted; returns the newest."""
        wait_until(lambda: len(self.leases()) == count, seconds=10, what=f"{count} leases")
        return self.leases()[-1]

    def explained(self, session: str) -> str:
        """What the router says of the next turn of a session."""
        key = session_pb2.SessionKey(**parse_session_name(session)._asdict())
        with SyncPlane(self.plane.target) as client:
            subject = router_pb2.RouteSubject(session_key=key)
            return client.run(client.router.explain(subject)).decision.details


@pytest.fixture
def stage(tmp_path: Path, options: str) -> Iterator[StockStage]:
    engines = [
        start_sim(role, plane="", folder=tmp_path, options=("--stock", "--no-prefix-caching"))
        for role in ("prefill", "decode")
    ]
    pair = SimPair(*engines)
    named = [f"prefill={pair.prefill.url}", f"decode={pair.decode.url}{options}"]
    plane = PlaneProcess(tmp_path, SETTINGS.format(engines=json.dumps(named)))
    plane.start()
    client = OpenAI(base_url=f"{plane.url}/v1", api_key="sk-e2e", max_retries=0, timeout=20)
    try:
        wait_until(
            lambda: (
                plane.program is not None and plane.program.output.count("under the stock") == 2
            ),
            seconds=15,
            what="both engines are registered",
        )
        with client:
            yield StockStage(plane, pair, client)
    finally:
        plane.stop()
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
