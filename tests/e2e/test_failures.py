"""Parts of a deployment die and come back; clients do not notice, and nothing is left behind."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from openai import OpenAI

from tests.e2e.stage import SETTINGS, Conversation, Stage
from tests.support.programs import wait_until
from tests.support.sim_engines import start_sim

QUESTIONS = ("Where did it fail?", "And why?", "How do I fix it?", "What else?")


def _decode_leases(stage: Stage) -> dict[str, int]:
    return {lease.name: lease.fencing_token for lease in stage.leases()}


def test_a_killed_plane_comes_back_with_its_leases(stage: Stage, client: OpenAI) -> None:
    """After kill -9 the plane learns from the engines what they hold, and reuse goes on."""
    chat = Conversation(stage, client)
    chat.ask(QUESTIONS[0])
    wait_until(lambda: bool(_decode_leases(stage)), seconds=5, what="a lease")
    before = _decode_leases(stage)

    stage.plane.kill()
    stage.plane.start()

    stage.wait_registered()

    wait_until(
        lambda: _decode_leases(stage) == before,
        seconds=15,
        what="the leases are back under their names and tokens",
    )
    chat.strategy = "pull"
    expected = chat.recomputed(QUESTIONS[1])
    said = chat.ask(QUESTIONS[1])
    assert said.text == expected
    assert said.pulled > 0


def test_a_killed_decode_engine_costs_a_recompute(stage: Stage, client: OpenAI) -> None:
    """After kill -9 and a restart the next turn is recomputed, the one after reuses again."""
    chat = Conversation(stage, client)
    chat.ask(QUESTIONS[0])
    stage.engines["decode"].program.kill()
    stage.start_engine("decode")
    expected = chat.recomputed(QUESTIONS[1])

    said = chat.ask(QUESTIONS[1])

    assert said.text == expected
    assert said.strategy == "recompute"
    assert said.pulled == 0
    expected = chat.recomputed(QUESTIONS[2])
    chat.strategy = "pull"
    said = chat.ask(QUESTIONS[2])
    assert said.text == expected
    assert said.pulled > 0


def test_a_killed_prefill_engine_keeps_nothing_up(stage: Stage, client: OpenAI) -> None:
    """A new prefill process under the old address pulls from decode as the old one did."""
    chat = Conversation(stage, client)
    chat.ask(QUESTIONS[0])
    stage.engines["prefill"].program.kill()
    stage.start_engine("prefill")
    expected = chat.recomputed(QUESTIONS[1])
    chat.strategy = "pull"

    said = chat.ask(QUESTIONS[1])

    assert said.text == expected
    assert said.pulled > 0


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Stage]:
    """A stage with two decode engines, whose gateway waits a second for a read."""
    settings = SETTINGS.replace("[gateway]", "[gateway]\npull_timeout = 1")
    stage = Stage(tmp_path, settings=settings)
    try:
        stage.start()
        stage.engines["other"] = start_sim(
            "decode", plane=stage.plane.target, folder=tmp_path, name="decode-1"
        )
        stage.wait_registered()
        yield stage
    finally:
        for engine in stage.engines.values():
            engine.program.send(signal.SIGCONT)
        stage.stop()


def test_a_frozen_decode_engine_costs_a_deadline(patient: Stage) -> None:
    """Who reads from a frozen engine gets another after a deadline; others notice nothing."""
    with patient.client() as client:
        chat = Conversation(patient, client)
        # The second turn pulls, so that both engines know each other: a handshake has a deadline.
        for question in QUESTIONS[:2]:
            chat.ask(question)
        expected = chat.recomputed(QUESTIONS[2])
        wait_until(lambda: bool(patient.leases()), seconds=5, what="a lease")
        (holder,) = {
            lease.engine
            for lease in patient.leases()
            if lease.session_key.session_id == chat.session
        }
        (frozen,) = [one for one in patient.engines.values() if f"engines/{one.name}" == holder]
        chat.strategy = "auto"
        frozen.program.send(signal.SIGSTOP)

        with ThreadPoolExecutor(1) as meanwhile:
            waiting = meanwhile.submit(chat.ask, QUESTIONS[2])
            others = [
                Conversation(patient, client, strategy="auto").ask(QUESTIONS[0]) for _ in range(3)
            ]
            said = waiting.result(timeout=10)

        assert said.text == expected
        assert said.strategy == "recompute"
        assert all(other.text for other in others)


def test_nothing_is_left_behind(stage: Stage, client: OpenAI) -> None:
    """Asked to stop, every process ends cleanly; engines take their registrations back."""
    Conversation(stage, client).ask(QUESTIONS[0])
    programs = [engine.program for engine in stage.engines.values()]
    assert stage.plane.program is not None
    pids = [program.pid for program in (*programs, stage.plane.program)]

    assert stage.stop() == [0, 0, 0]

    for pid in pids:
        assert not os.path.exists(f"/proc/{pid}")  # noqa: PTH110 - a process, not a file
