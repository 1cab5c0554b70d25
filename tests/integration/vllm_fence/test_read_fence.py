"""Two real vLLM engines, one of which stands still until the other gave away what it is to read.

What matters is that nobody is answered from blocks that hold somebody else's prompt by then, and
that no such block gets into a prefix cache, where it would be wrong for everybody.

The handles have lost their generation words, as those of an engine that has none to give.
"""

import signal
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kvplane.transfer_params import KEY, PREFILL_ONLY, WORD_KEY, TurnMark
from kvplane_services.local.engines import EnginePair
from tests.integration.vllm.test_reuse import (
    continued,
    handle_of,
    new_session,
    opening,
)
from tests.integration.vllm_fence.conftest import STAGED
from tests.integration.vllm_fence.small_memory import all_free, asked_on, write_over
from tests.support.programs import pause, wait_until
from tests.support.recording_plane import RecordingPlane
from tests.support.vllm_engines import (
    MODEL,
    Messages,
    Served,
    ask,
    metric,
    recomputed,
    transferred,
    turn,
)

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(240)]


def _staged(pair: EnginePair, messages: Messages) -> dict[str, Any]:
    first = ask(pair.prefill, messages, params=PREFILL_ONLY, max_tokens=1)
    assert first.kv_transfer_params is not None
    mark = TurnMark("", MODEL, "", new_session())
    return {**_without_word(first.kv_transfer_params), KEY: mark.encode()}


def _without_word(handle: Mapping[str, Any]) -> dict[str, Any]:
    assert WORD_KEY in handle
    return {name: value for name, value in handle.items() if name != WORD_KEY}


def _expired(engine: Served) -> float:
    """Expired reads of the engine, and its own leases that ended unread: vLLM counts both."""
    return metric(engine, "vllm:nixl_num_kv_expired_reqs_total")


def _settled(engine: Served) -> float:
    """What `_expired` counts once none of the engine's own leases can end any more."""
    wait_until(lambda: all_free(engine), seconds=STAGED + 5, what="the end of earlier leases")
    return _expired(engine)


def test_staged_blocks_say_until_when_they_are_kept(pair: EnginePair) -> None:
    """A prefill answer carries the expiry that vLLM leaves out, and the leg after it reads."""
    messages = opening(new_session())
    params = _staged(pair, messages)
    before = transferred(pair.decode)

    reply = ask(pair.decode, messages, params=params)

    assert isinstance(params["remote_blocks_expiry_time"], float)
    assert transferred(pair.decode) - before == reply.prompt_tokens
    assert reply.token_ids == recomputed(pair, messages).token_ids


def test_a_decode_engine_that_stood_still_between_the_legs_reads_nothing(
    pair: EnginePair, thread: ThreadPoolExecutor
) -> None:
    """Frozen until prefill wrote over the blocks it recomputes, and caches nothing wrong."""
    messages = opening(new_session())
    reference = recomputed(pair, messages)
    expired = _settled(pair.decode)
    params = _staged(pair, messages)
    before = transferred(pair.decode)

    pair.decode.process.send(signal.SIGSTOP)
    try:
        asked = asked_on(thread, pair.decode, messages, params=params)
        wait_until(lambda: all_free(pair.prefill), seconds=STAGED + 5, what="the lease's end")
        write_over(pair.prefill)
    finally:
        pair.decode.process.send(signal.SIGCONT)
    reply = asked.result()

    assert reply.token_ids == reference.token_ids
    assert transferred(pair.decode) == before
    assert _expired(pair.decode) == expired + 1
    assert ask(pair.decode, messages).token_ids == reference.token_ids


def test_a_leg_that_comes_late_reads_nothing(pair: EnginePair) -> None:
    """A gateway that stood still between the legs costs a recompute."""
    messages = opening(new_session())
    reference = recomputed(pair, messages)
    params = _staged(pair, messages)
    wait_until(lambda: all_free(pair.prefill), seconds=STAGED + 5, what="the lease's end")
    write_over(pair.prefill)
    before = transferred(pair.decode)

    reply = ask(pair.decode, messages, params=params)

    assert reply.token_ids == reference.token_ids
    assert transferred(pair.decode) == before
    assert ask(pair.decode, messages).token_ids == reference.token_ids


def test_a_decode_engine_that_stood_still_in_its_read_refuses_what_it_read(
    pair: EnginePair, held: Path, thread: ThreadPoolExecutor
) -> None:
    """A read that began in time and ended too late counts as failed, and nothing of it is kept."""
    messages = opening(new_session())
    reference = recomputed(pair, messages)
    expired = _settled(pair.decode)
    params = _staged(pair, messages)

    held.touch()
    try:
        asked = asked_on(thread, pair.decode, messages, params=params)
        wait_until(lambda: all_free(pair.prefill), seconds=STAGED + 5, what="the lease's end")
        write_over(pair.prefill)
    finally:
        held.unlink()
    reply = asked.result()

    assert reply.token_ids == reference.token_ids
    assert _expired(pair.decode) == expired + 1
    assert ask(pair.decode, messages).token_ids == reference.token_ids


def test_a_prefill_engine_that_stood_still_in_its_read_refuses_what_it_read(
    plane: RecordingPlane, pair: EnginePair, held: Path, thread: ThreadPoolExecutor
) -> None:
    """The same holds for blocks of a retention that ended meanwhile."""
    expired = _settled(pair.prefill)
    session = new_session()
    first = turn(pair, session, opening(session))
    messages = continued(opening(session), first)
    reference = recomputed(pair, messages)
    # The engine keeps the blocks as long as it told the plane, by the clock of this machine.
    remaining = plane.wait_for_session(session).remaining.ToMilliseconds() / 1000
    handle = _without_word(handle_of(plane, session))
    handle["remote_blocks_expiry_time"] = time.perf_counter() + remaining

    held.touch()
    try:
        asked = asked_on(thread, pair.prefill, messages, params=handle)
        ended = handle["remote_request_id"]
        plane.wait(lambda: ended in plane.ended, seconds=20, what="the retention's end")
        write_over(pair.decode)
    finally:
        held.unlink()
    reply = asked.result()

    assert reply.token_ids == reference.token_ids
    assert _expired(pair.prefill) == expired + 1


def test_staged_blocks_without_an_expiry_are_given_back_unread(pair: EnginePair) -> None:
    """A decode engine that is not told until when recomputes, and lets prefill free at once."""
    wait_until(lambda: all_free(pair.prefill), seconds=STAGED + 5, what="free blocks")
    messages = opening(new_session())
    params = {**_staged(pair, messages), "remote_blocks_expiry_time": None}
    before = transferred(pair.decode)

    reply = ask(pair.decode, messages, params=params)

    assert transferred(pair.decode) == before
    assert wait_until(lambda: all_free(pair.prefill), seconds=5, what="free blocks") < STAGED / 2
    assert reply.token_ids == recomputed(pair, messages).token_ids


def test_engines_serve_on_when_they_stood_still_for_less(
    pair: EnginePair, held: Path, thread: ThreadPoolExecutor
) -> None:
    """A read that was held up, and still ended in time, is used."""
    messages = opening(new_session())
    params = _staged(pair, messages)
    before = transferred(pair.decode)

    held.touch()
    asked = asked_on(thread, pair.decode, messages, params=params)
    pause(2)
    held.unlink()

    assert transferred(pair.decode) - before == 0
    reply = asked.result()
    assert transferred(pair.decode) - before == reply.prompt_tokens
    assert reply.token_ids == recomputed(pair, messages).token_ids
