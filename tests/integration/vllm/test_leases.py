"""Two real vLLM engines: how long a decode engine keeps what it retains, and what ends it."""

import json
import statistics
import time

import pytest

from kvplane.api.lease.v1 import lease_pb2
from kvplane_services.local.engines import EnginePair
from tests.integration.vllm.conftest import LEASE_TTL
from tests.integration.vllm.test_reuse import continued, new_session, opening
from tests.support.recording_plane import RecordingPlane
from tests.support.vllm_engines import ask, local_turn, metric, recomputed, transferred, turn


def used(pair: EnginePair) -> float:
    """Blocks in use at the decode engine, as vLLM says."""
    return round(metric(pair.decode, "vllm:kv_cache_usage_perc") * 399)


def used_by_others(plane: RecordingPlane, pair: EnginePair) -> float:
    """Blocks of requests without a mark, which vLLM keeps for minutes."""
    plane.wait(lambda: "engines/decode-0" in plane.loads, seconds=5, what="a heartbeat")
    return used(pair) - plane.loads["engines/decode-0"].retained_blocks


def until_used(pair: EnginePair, expected: float, seconds: float) -> float:
    deadline = time.monotonic() + seconds
    while (blocks := used(pair)) != expected and time.monotonic() < deadline:
        # An idle engine's gauge is as old as its last step.
        ask(pair.decode, [{"role": "user", "content": "x"}], max_tokens=1)
        time.sleep(0.2)
    return blocks


def test_renewals_hold_and_silence_frees(plane: RecordingPlane, pair: EnginePair) -> None:
    """What is renewed outlives its TTL, the rest ends when that is over; all memory is back."""
    kept, local, *silent = (new_session() for _ in range(5))
    plane.renews = lambda one: one.session_key.session_id == kept
    unrelated = used_by_others(plane, pair)
    started = time.monotonic()
    first = turn(pair, kept, opening(kept))
    answered: dict[str, float] = {}
    for session in (*silent, local):
        serve = local_turn if session == local else turn
        serve(pair, session, opening(session))
        answered[session] = time.monotonic()
    names = {session: plane.wait_for_session(session).retention_id for session in answered}
    name = plane.wait_for_session(kept).retention_id

    plane.wait(
        lambda: all(one in plane.ended for one in names.values()),
        seconds=LEASE_TTL + 3,
        what="the unrenewed ones end",
    )

    lasted = [plane.ended_at[name] - answered[session] for session, name in names.items()]
    assert statistics.median(lasted) == pytest.approx(LEASE_TTL, abs=0.2)
    assert {plane.ended[one] for one in names.values()} == {lease_pb2.END_REASON_EXPIRED}
    while time.monotonic() - started < LEASE_TTL * 1.25:
        time.sleep(0.1)
    assert name in plane.retentions
    # The handle was reported again with a later expiry, so it can still be read.
    handle = json.loads(plane.retentions[name].handle.kv_transfer_params)
    messages = continued(opening(kept), first)
    before = transferred(pair.prefill)
    second = turn(pair, kept, messages, handle=handle)
    assert transferred(pair.prefill) - before == handle["remote_num_tokens"]
    assert second.token_ids == recomputed(pair, messages).token_ids

    plane.renews = lambda _: False
    plane.wait(lambda: not plane.of_engine("decode-0"), seconds=LEASE_TTL + 3, what="all end")
    assert until_used(pair, unrelated, 3) == unrelated


def test_a_release_ends_a_retention_at_once(plane: RecordingPlane, pair: EnginePair) -> None:
    """What is released is free with the plane's next answer, of turns served alone too."""
    session, local = new_session(), new_session()
    turn(pair, session, opening(session))
    local_turn(pair, local, opening(local))
    names = {plane.wait_for_session(one).retention_id for one in (session, local)}

    plane.releases |= dict.fromkeys(names, lease_pb2.END_REASON_SUPERSEDED)
    plane.wait(lambda: names <= set(plane.ended), seconds=LEASE_TTL / 2, what="the releases")

    assert {plane.ended[one] for one in names} == {lease_pb2.END_REASON_SUPERSEDED}


def test_engines_serve_on_without_the_plane(plane: RecordingPlane, pair: EnginePair) -> None:
    """While the plane is away turns go on; when it is back it hears of all that is held."""
    session, meanwhile = new_session(), new_session()
    turn(pair, session, opening(session))
    name = plane.wait_for_session(session).retention_id
    registered = len(plane.registrations)
    plane.stop()

    reply = turn(pair, meanwhile, opening(meanwhile))
    plane.full_reports.clear()
    plane.start()

    assert reply.token_ids == recomputed(pair, opening(meanwhile)).token_ids
    plane.wait_for_session(meanwhile)
    decode = [one for one in plane.full_reports if one.name == "engines/decode-0"]
    reported = {one.retention_id for one in decode[0].retentions}
    assert name in reported
    assert plane.retentions[name].lease == f"leases/{name}"
    assert len(plane.registrations) == registered


def test_memory_comes_back_without_the_plane(plane: RecordingPlane, pair: EnginePair) -> None:
    """While the plane is away what engines retain, local turns too, ends within one TTL."""
    session, local = new_session(), new_session()
    unrelated = used_by_others(plane, pair)
    turn(pair, session, opening(session))
    local_turn(pair, local, opening(local))
    names = {plane.wait_for_session(one).retention_id for one in (session, local)}
    plane.stop()
    try:
        assert used(pair) > unrelated
        # The engine may be in the middle of what the plane's last answer told it.
        assert until_used(pair, unrelated, LEASE_TTL + 2) == unrelated
    finally:
        plane.start()
    plane.wait(lambda: names <= set(plane.ended), seconds=15, what="the plane hears of it")
    assert {plane.ended[one] for one in names} == {lease_pb2.END_REASON_EXPIRED}


def test_the_engines_load_is_reported(plane: RecordingPlane, pair: EnginePair) -> None:
    """Heartbeats carry the blocks in use and retained, shared ones once, and no idle requests."""
    session = new_session()
    first = turn(pair, session, opening(session))
    plane.wait_for_session(session)
    local_turn(pair, session, continued(opening(session), first))
    newest = plane.wait_for_session(session, 2)

    plane.wait(
        lambda: plane.loads["engines/decode-0"].running_requests == 0, seconds=5, what="idle"
    )
    load = plane.loads["engines/decode-0"]
    held = plane.of_engine("decode-0")
    assert load.retentions == len(held)
    assert load.retained_blocks == load.used_blocks
    # Both turns share the blocks of their common prefix.
    assert load.retained_blocks < sum(one.blocks for one in held.values())
    assert load.retained_blocks >= newest.blocks
