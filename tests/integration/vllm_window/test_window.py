"""Two real vLLM engines whose model has sliding windows: what is read of a long history."""

import json
import uuid
from collections.abc import Mapping
from typing import Any

import pytest

from kvplane.transfer_params import KEY, PREFILL_ONLY, TurnMark
from kvplane_services.local.engines import EnginePair
from tests.support.recording_plane import RecordingPlane
from tests.support.vllm_engines import (
    MODEL,
    Messages,
    Reply,
    ask,
    recomputed,
    transferred,
    turn,
)
from tests.support.window_model import WINDOW

BLOCK = 128
QUESTION = "Which change broke the replication test of the block service? The log says this: "
# The marker of the user, the end of the turn, and the marker of the assistant.
MARKERS = 3


def opening(session_id: str, length: int) -> Messages:
    """A first message of a given number of tokens, markers included."""
    text = f"{session_id} {QUESTION * (length // len(QUESTION) + 1)}"
    return [{"role": "user", "content": text[: length - MARKERS]}]


def continued(messages: Messages, reply: Reply) -> Messages:
    return [
        *messages,
        {"role": "assistant", "content": reply.text},
        {"role": "user", "content": "And then?"},
    ]


def new_session() -> str:
    return f"s-{uuid.uuid4().hex[:12]}"


def handle_of(plane: RecordingPlane, session_id: str) -> Mapping[str, Any]:
    retention = plane.wait_for_session(session_id)
    handle: Mapping[str, Any] = json.loads(retention.handle.kv_transfer_params)
    return handle


@pytest.mark.parametrize("length", [5 * BLOCK + 60, BLOCK + 40])
def test_the_next_turn_reads_its_history(
    plane: RecordingPlane, pair: EnginePair, length: int
) -> None:
    """All of a history is read, whether longer than the window or not; the answer is exact."""
    session = new_session()
    first = turn(pair, session, opening(session, length))
    messages = continued(opening(session, length), first)
    reference = recomputed(pair, messages)
    handle = handle_of(plane, session)
    before = transferred(pair.prefill)

    second = turn(pair, session, messages, handle=handle)

    every, window = handle["remote_block_ids"]
    assert len(every) == -(-handle["remote_num_tokens"] // BLOCK)
    assert len(window) == min(len(every), -(-WINDOW // BLOCK) + 1)
    assert transferred(pair.prefill) - before == handle["remote_num_tokens"]
    assert second.token_ids == reference.token_ids


def test_a_history_that_fills_its_last_block_is_read_exactly(
    plane: RecordingPlane, pair: EnginePair
) -> None:
    """The token that stops a turn has no KV, and would be the first of a block of its own."""
    session = new_session()
    tokens = 6 * BLOCK
    # A reply of so many tokens, the last of which is the first of its kind and stops it.
    for length in range(4, 24):
        messages = opening(session, tokens - length + 1)
        reply = recomputed(pair, messages).token_ids
        if len(reply) >= length and reply[length - 1] not in (0, *reply[: length - 1]):
            break
    else:
        raise AssertionError("no reply has a token to stop at")
    staged = ask(pair.prefill, messages, params=PREFILL_ONLY, max_tokens=1)
    assert staged.kv_transfer_params is not None
    first = ask(
        pair.decode,
        messages,
        params={**staged.kv_transfer_params, KEY: TurnMark("", MODEL, "", session).encode()},
        stream=True,
        stop_token_ids=[reply[length - 1]],
    )
    following = continued(messages, first)
    reference = recomputed(pair, following)
    handle = handle_of(plane, session)
    before = transferred(pair.prefill)

    second = turn(pair, session, following, handle=handle)

    assert first.token_ids == reply[:length]
    assert handle["remote_num_tokens"] == tokens
    assert transferred(pair.prefill) - before == tokens
    assert second.token_ids == reference.token_ids


def test_a_history_edited_before_the_window_is_computed(
    plane: RecordingPlane, pair: EnginePair
) -> None:
    """What a window let go cannot be read in part, so the turn reads nothing and is exact."""
    session = new_session()
    messages = opening(session, 5 * BLOCK + 60)
    first = turn(pair, session, messages)
    text = messages[0]["content"]
    edited = continued([{"role": "user", "content": f"{text[:300]}#{text[301:]}"}], first)
    reference = recomputed(pair, edited)
    handle = handle_of(plane, session)
    before = transferred(pair.prefill)

    reply = turn(pair, session, edited, handle=handle)

    assert transferred(pair.prefill) == before
    assert reply.token_ids == reference.token_ids
