"""Two real vLLM engines, and what may go wrong between them."""

import dataclasses
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kvplane_services.local.engines import EnginePair, prefill_and_decode
from tests.integration.vllm.test_reuse import continued, handle_of, new_session, opening
from tests.support.programs import wait_until
from tests.support.recording_plane import RecordingPlane
from tests.support.vllm_engines import (
    Messages,
    ask,
    engine_python,
    metric,
    recomputed,
    started,
    transferred,
    turn,
)

# Sends a side channel what it cannot read, then asks for its metadata as a peer would.
PROBE = """
import sys, msgspec, zmq
sock = zmq.Context().socket(zmq.DEALER)
sock.setsockopt(zmq.RCVTIMEO, 5000)
sock.setsockopt(zmq.LINGER, 0)
sock.connect(f"tcp://127.0.0.1:{sys.argv[1]}")
encode = msgspec.msgpack.encode
for bad in (b"", b"\\xff\\xff\\xff", encode("hello"), encode([1, 2]), encode([b"x", 7, 7])):
    sock.send_multipart([b"", bad])
sock.send_multipart([b"no separator"])
for attempt in range(20):
    sock.send_multipart([b"", encode((b"get_meta_msg", 0, 0))])
    if sock.poll(500):
        print(len(sock.recv_multipart()[1]))
        break
"""


def test_a_malformed_message_does_not_end_the_side_channel(pair: EnginePair) -> None:
    """After messages that mean nothing a peer still gets the engine's metadata."""
    found = subprocess.run(
        [engine_python(), "-c", PROBE, str(pair.decode.options.side_channel_port)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert int(found.stdout) > 500


def test_an_owner_that_is_not_there_costs_a_recompute(
    plane: RecordingPlane, pair: EnginePair
) -> None:
    """A handle of an unknown engine at a dead address ends in the right answer, not in a hang."""
    session = new_session()
    first = turn(pair, session, opening(session))
    handle = {**handle_of(plane, session), "remote_engine_id": "nobody", "remote_port": 9}
    messages = continued(opening(session), first)
    reference = recomputed(pair, messages)
    before = transferred(pair.prefill)
    started_at = time.monotonic()

    second = turn(pair, session, messages, handle=handle)

    assert transferred(pair.prefill) == before
    assert second.token_ids == reference.token_ids
    # vLLM waits 5 s for a handshake.
    assert time.monotonic() - started_at < 12


@pytest.fixture(scope="module")
def doomed(
    pair: EnginePair, plane: RecordingPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EnginePair]:
    """The pair's prefill engine with a decode engine that may be frozen, and killed at last."""
    _, options = prefill_and_decode(model_dir=pair.decode.options.model_dir, plane=plane.target)
    logs = tmp_path_factory.mktemp("doomed")
    with started([dataclasses.replace(options, name="decode-1")], logs) as (decode,):
        yield EnginePair(pair.prefill, decode)


def third_turn(plane: RecordingPlane, doomed: EnginePair) -> tuple[Messages, Mapping[str, Any]]:
    """Messages whose history the doomed engine holds, which prefill has read from before."""
    session = new_session()
    first = turn(doomed, session, opening(session))
    messages = continued(opening(session), first)
    second = turn(doomed, session, messages, handle=handle_of(plane, session))
    return continued(messages, second), handle_of(plane, session, 2)


def test_a_frozen_owner_holds_up_nobody_else(
    plane: RecordingPlane, pair: EnginePair, doomed: EnginePair
) -> None:
    """While a read waits for a frozen engine prefill serves others, and the same turn computed."""
    messages, handle = third_turn(plane, doomed)
    reference = recomputed(pair, messages)
    other = opening(new_session())
    expected = recomputed(pair, other)
    with ThreadPoolExecutor(1) as waiting:
        doomed.decode.process.send(signal.SIGSTOP)
        try:
            # What the gateway does: gives up, and comes again without the handle.
            given_up = waiting.submit(
                ask, pair.prefill, messages, params=handle, max_tokens=1, seconds=3
            )
            meanwhile = turn(pair, new_session(), other)
            assert not given_up.done()
            assert isinstance(given_up.exception(timeout=20), TimeoutError)
            again = turn(pair, new_session(), messages)
        finally:
            doomed.decode.process.send(signal.SIGCONT)

    assert meanwhile.token_ids == expected.token_ids
    assert again.token_ids == reference.token_ids
    wait_until(
        lambda: metric(pair.prefill, "vllm:num_requests_waiting") == 0,
        seconds=20,
        what="prefill is rid of what waited",
    )


def test_an_owner_that_died_costs_a_recompute(
    plane: RecordingPlane, pair: EnginePair, doomed: EnginePair
) -> None:
    """Prefill recomputes at once when the engine that it wants to read from is gone."""
    messages, handle = third_turn(plane, doomed)
    reference = recomputed(pair, messages)
    before = transferred(pair.prefill)
    doomed.decode.process.kill()
    started_at = time.monotonic()

    third = turn(pair, new_session(), messages, handle=handle)

    assert transferred(pair.prefill) == before
    assert third.token_ids == reference.token_ids
    assert time.monotonic() - started_at < 5
