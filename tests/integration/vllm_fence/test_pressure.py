"""A real decode engine whose cache is full of retentions, and requests that need room."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvplane.api.lease.v1 import lease_pb2
from kvplane.transfer_params import KEY, LOCAL_ONLY, TurnMark
from kvplane_services.local.engines import EnginePair
from tests.integration.vllm.test_reuse import QUESTION, continued, handle_of, new_session
from tests.support.block_account import BlockAccount, checked_account
from tests.support.recording_plane import RecordingPlane
from tests.support.vllm_engines import (
    MODEL,
    Messages,
    Reply,
    ask,
    local_turn,
    metric,
    recomputed,
    turn,
)

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(240)]

# Far longer than any of these tests lasts.
LEASE_TTL = 120.0


@pytest.fixture(autouse=True)
def long_leases(plane: RecordingPlane, pair: EnginePair, released: None) -> Iterator[None]:
    """All is renewed, for longer than anybody waits here."""
    del released
    # Engines serve before they register, and then keep the TTL that they are told.
    plane.wait(
        lambda: pair.decode.name in {one.engine_id for one in plane.registrations},
        seconds=30,
        what="the registration",
    )
    ttl, renews = plane.lease_ttl, plane.renews
    plane.lease_ttl, plane.renews = LEASE_TTL, lambda _: True
    yield
    plane.lease_ttl, plane.renews = ttl, renews


@pytest.fixture(autouse=True)
def account(plane: RecordingPlane, pair: EnginePair, long_leases: None) -> Iterator[BlockAccount]:
    """While these tests run, the account of retained blocks is vLLM's, as far as one can see."""
    del long_leases
    with checked_account(plane, pair.decode, _name(pair)) as account:
        yield account


def _name(pair: EnginePair) -> str:
    return f"engines/{pair.decode.name}"


def opening(session_id: str) -> Messages:
    """A first message of three blocks or so, unlike that of any other session."""
    return [{"role": "user", "content": f"{session_id} {QUESTION * 3}"}]


def fill(plane: RecordingPlane, pair: EnginePair) -> dict[str, Reply]:
    """Retains turns of new sessions until the next one would not fit; returns their replies."""
    replies: dict[str, Reply] = {}
    blocks = pair.decode.options.blocks - 1
    while True:
        session = new_session()
        replies[session] = turn(pair, session, opening(session))
        size = plane.wait_for_session(session).blocks
        load = plane.loads[_name(pair)]
        if blocks - load.used_blocks < size:
            return replies


def half_the_cache(pair: EnginePair) -> Messages:
    """A prompt of half of the blocks, a few tokens less."""
    tokens = (pair.decode.options.blocks - 1) // 2 * 128
    once = recomputed_prompt(pair, 1)
    each = recomputed_prompt(pair, 2) - once
    return question((tokens - once - 30) // each + 1)


def question(times: int) -> Messages:
    return [{"role": "user", "content": f"{new_session()} {QUESTION * times}"}]


def recomputed_prompt(pair: EnginePair, times: int) -> int:
    return recomputed(pair, question(times), max_tokens=1).prompt_tokens


def ends(plane: RecordingPlane, names: dict[str, str]) -> dict[str, int]:
    """Of retentions by session, why those ended that did."""
    return {session: plane.ended[name] for session, name in names.items() if name in plane.ended}


def test_a_request_of_half_a_full_cache_starts_at_once(
    plane: RecordingPlane, pair: EnginePair
) -> None:
    """It waits for no lease; what it needs is gone, and was told as reclaimed; the rest stays."""
    replies = fill(plane, pair)
    held = {session: plane.of_session(session)[0] for session in replies}
    names = {session: one.retention_id for session, one in held.items()}
    sizes = {session: one.blocks for session, one in held.items()}
    large, session = half_the_cache(pair), new_session()
    queued = metric(pair.decode, "vllm:request_queue_time_seconds_sum")
    started = time.monotonic()

    reply = local_turn(pair, session, large, max_tokens=1)

    took = time.monotonic() - started
    queued = metric(pair.decode, "vllm:request_queue_time_seconds_sum") - queued
    print(f"half the cache: answered after {took:.3f} s, in the queue for {queued * 1e3:.1f} ms")  # noqa: T201 - a figure
    retention = plane.wait_for_session(session)
    total = pair.decode.options.blocks - 1
    assert total / 2 - 2 <= retention.blocks <= total / 2
    assert queued < 5
    assert took < LEASE_TTL / 2
    plane.wait(lambda: len(ends(plane, names)) > 0, seconds=5, what="the report of what went")
    gone = ends(plane, names)
    assert set(gone.values()) == {lease_pb2.END_REASON_RECLAIMED}
    # No more went than had to.
    (size, *_) = sizes.values()
    assert (len(gone) - 1) * size < retention.blocks
    assert reply.token_ids == recomputed(pair, large, max_tokens=1).token_ids


def test_the_next_turn_of_a_reclaimed_conversation_is_recomputed(
    plane: RecordingPlane, pair: EnginePair
) -> None:
    """Its handle names blocks that others have by now; the answer is the right one all the same."""
    session = new_session()
    first = turn(pair, session, opening(session))
    handle = handle_of(plane, session)
    name = plane.wait_for_session(session).retention_id
    fill(plane, pair)
    local_turn(pair, new_session(), half_the_cache(pair), max_tokens=1)
    plane.wait(lambda: name in plane.ended, seconds=5, what="the oldest was reclaimed")
    messages = continued(opening(session), first)

    pulled = turn(pair, session, messages, handle=handle)

    assert plane.ended[name] == lease_pb2.END_REASON_RECLAIMED
    assert pulled.token_ids == recomputed(pair, messages).token_ids


def test_replies_that_grow_in_a_full_cache_are_not_interrupted(
    plane: RecordingPlane, pair: EnginePair
) -> None:
    """Requests that run get blocks of retentions before vLLM would stop one of them."""
    fill(plane, pair)
    before = metric(pair.decode, "vllm:num_preemptions_total")
    sessions = [new_session() for _ in range(3)]

    def long_turn(session: str) -> Reply:
        mark = TurnMark("", MODEL, "", session)
        return ask(
            pair.decode,
            opening(session),
            params={**LOCAL_ONLY, KEY: mark.encode()},
            max_tokens=300,
            ignore_eos=True,
        )

    with ThreadPoolExecutor(len(sessions)) as threads:
        replies = list(threads.map(long_turn, sessions))

    assert metric(pair.decode, "vllm:num_preemptions_total") == before
    assert [len(reply.token_ids) for reply in replies] == [300] * 3
    for session in sessions:
        plane.wait_for_session(session)


def test_the_account_is_vllms(
    plane: RecordingPlane, pair: EnginePair, account: BlockAccount
) -> None:
    """Retained blocks, shared ones once, are the used ones, also while retentions come and go."""
    session = new_session()
    first = turn(pair, session, opening(session))
    plane.wait_for_session(session)
    local_turn(pair, session, continued(opening(session), first))
    plane.wait_for_session(session, 2)
    fill(plane, pair)
    deadline = time.monotonic() + 30
    while account.check() < 20 and time.monotonic() < deadline:
        time.sleep(0.2)

    assert account.check() >= 20
