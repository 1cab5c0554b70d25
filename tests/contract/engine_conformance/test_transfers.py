"""What engines read of each other, what it does to the answer, and what the plane hears."""

import json
import threading
import urllib.request
from collections.abc import Mapping
from typing import Any

import pytest

from kvplane.transfer_params import KEY, LOCAL_ONLY, PREFILL_ONLY, TurnMark, decode_proof
from tests.contract.engine_conformance.bench import (
    Bench,
    Spent,
    continued,
    new_session,
    opening,
)
from tests.support.programs import pause, wait_until
from tests.support.vllm_engines import MODEL, Messages, Reply, ask, metric, recomputed

TENANT = "default"
# Reads that were declined; blocks of the engine's own that nobody read in time count there too.
EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"


def _mark(session: str, decision_id: str = "") -> dict[str, Any]:
    mark = TurnMark(TENANT, MODEL, "", session, decision_id, b"\x01\x02")
    return {KEY: mark.encode()}


def _turn(
    bench: Bench,
    session: str,
    messages: Messages,
    *,
    handle: Mapping[str, Any] | None = None,
    decision_id: str = "",
) -> Reply:
    """A turn through both engines, streamed."""
    first = ask(bench.pair.prefill, messages, params=handle or PREFILL_ONLY, max_tokens=1)
    assert first.kv_transfer_params is not None
    params = {**first.kv_transfer_params, **_mark(session, decision_id)}
    return ask(bench.pair.decode, messages, params=params, stream=True)


def test_the_prefill_leg_answers_one_token_with_parameters(bench: Bench) -> None:
    """What a decode engine needs is in the prefill answer."""
    reply = ask(bench.pair.prefill, opening(new_session()), params=PREFILL_ONLY, max_tokens=1)

    params = reply.kv_transfer_params
    assert len(reply.token_ids) == 1
    assert params is not None
    assert params["do_remote_prefill"] is True
    assert params["do_remote_decode"] is False
    assert params["remote_num_tokens"] == reply.prompt_tokens
    (blocks,) = params["remote_block_ids"]
    assert len(blocks) == -(-reply.prompt_tokens // bench.block_size)
    assert {"remote_engine_id", "remote_request_id", "remote_host", "remote_port"} <= set(params)


def test_the_decode_leg_reads_the_whole_prompt(bench: Bench) -> None:
    """By its own count the decode engine takes the prompt from prefill, and answers the same."""
    messages = opening(new_session())
    reference = recomputed(bench.pair, messages)
    before = bench.spent(bench.pair.decode)

    reply = _turn(bench, new_session(), messages)

    assert bench.since(bench.pair.decode, before) == Spent(0, reply.prompt_tokens)
    assert reply.token_ids == reference.token_ids
    assert not any("kv_transfer_params" in line for line in reply.raw)


def test_staged_blocks_come_free_at_the_read(bench: Bench) -> None:
    """A prefill engine whose blocks were read has their memory back, long before their TTL."""
    usage = "vllm:kv_cache_usage_perc"
    # What other tests staged and left unread is still there.
    before = metric(bench.pair.prefill, usage)

    _turn(bench, new_session(), opening(new_session()))

    def free() -> bool:
        # An idle engine's gauge may be as old as its last step.
        recomputed(bench.pair, [{"role": "user", "content": "x"}], max_tokens=1)
        return metric(bench.pair.prefill, usage) <= before

    wait_until(free, seconds=5, what="the prefill engine's memory is free")


def test_a_finished_turn_becomes_a_lease(bench: Bench) -> None:
    """The plane grants a lease over exactly the tokens and blocks that were computed."""
    session = new_session()
    reply = _turn(bench, session, opening(session), decision_id="d-1")

    lease = bench.lease(session)

    # The last token was sampled and never fed back.
    tokens = reply.prompt_tokens + len(reply.token_ids) - 1
    assert lease.tokens == tokens
    assert lease.blocks == -(-tokens // bench.block_size)
    assert lease.decision_id == "d-1"
    assert lease.message_digest == b"\x01\x02"
    assert lease.engine == "engines/decode-0"
    handle = json.loads(lease.handle.kv_transfer_params)
    proof = decode_proof(handle)
    assert handle["do_remote_decode"] is True
    assert handle["remote_num_tokens"] == tokens
    assert proof is not None
    assert proof.tokens == tokens == lease.handle.digests.tokens
    assert list(proof.digests) == list(lease.handle.digests.digests)


def test_the_next_turn_pulls_exactly_what_is_held(bench: Bench) -> None:
    """Prefill reads the held tokens, computes the rest, and the answer is the recomputed one."""
    session = new_session()
    first = _turn(bench, session, opening(session))
    messages = continued(opening(session), first)
    reference = recomputed(bench.pair, messages)
    handle = bench.handle(session)
    before = bench.spent(bench.pair.prefill)

    second = _turn(bench, session, messages, handle=handle)

    held = handle["remote_num_tokens"]
    assert bench.since(bench.pair.prefill, before) == Spent(second.prompt_tokens - held, held)
    assert second.token_ids == reference.token_ids


def test_a_read_consumes_nothing(bench: Bench) -> None:
    """The same retention is read twice, and the plane is told of both reads."""
    session = new_session()
    first = _turn(bench, session, opening(session))
    handle = bench.handle(session)
    held = handle["remote_num_tokens"]
    before = bench.spent(bench.pair.prefill)

    for fork in ("one", "two"):
        messages = continued(opening(session), first, f"Take way {fork}.")
        reply = _turn(bench, new_session(), messages, handle=handle)
        assert reply.token_ids == recomputed(bench.pair, messages).token_ids

    assert bench.since(bench.pair.prefill, before).transferred == 2 * held
    wait_until(lambda: bench.lease(session).reads == 2, seconds=5, what="two reads")


@pytest.mark.parametrize("at", [150, 300, 450])
def test_edited_history_is_read_up_to_the_edit(bench: Bench, at: int) -> None:
    """Only whole chunks of proof before the edit are read, and the answer is the recomputed one."""
    session = new_session()
    first = _turn(bench, session, opening(session))
    edited = opening(session)
    text = edited[0]["content"]
    edited[0]["content"] = text[:at] + ("#" if text[at] != "#" else "+") + text[at + 1 :]
    messages = continued(edited, first)
    reference = recomputed(bench.pair, messages)
    handle = bench.handle(session)
    before = bench.spent(bench.pair.prefill)

    second = _turn(bench, session, messages, handle=handle)

    shared = bench.since(bench.pair.prefill, before).transferred
    # One character is one token, and a few belong to the chat template.
    assert (at - 64) <= shared <= at + 64
    assert shared % 64 == 0
    assert second.token_ids == reference.token_ids


@pytest.mark.parametrize("without", ["proof", "expiry", "word"])
def test_untrusted_handles_are_not_read(bench: Bench, without: str) -> None:
    """A handle that lost its proof, its expiry or its word costs a recompute, and no error."""
    session = new_session()
    first = _turn(bench, session, opening(session))
    messages = continued(opening(session), first)
    handle = bench.handle(session)
    if without == "proof":
        del handle[KEY]
    elif without == "expiry":
        handle["remote_blocks_expiry_time"] = None
    else:
        # All that a handle with a word says of time.
        handle["remote_blocks_expiry_time"] = 0.0
    before = bench.spent(bench.pair.prefill)

    reply = _turn(bench, session, messages, handle=handle)

    assert bench.since(bench.pair.prefill, before).transferred == 0
    assert reply.token_ids == recomputed(bench.pair, messages).token_ids


def test_a_handle_near_its_expiry_is_declined(bench: Bench) -> None:
    """Within 5 s of its expiry nothing is read; the turn is recomputed and counted."""
    session = new_session()
    first = _turn(bench, session, opening(session))
    messages = continued(opening(session), first)
    handle = bench.handle(session)
    handle["remote_blocks_expiry_time"] -= bench.lease_ttl - 3
    counted = metric(bench.pair.prefill, EXPIRED)
    before = bench.spent(bench.pair.prefill)

    reply = _turn(bench, session, messages, handle=handle)

    assert bench.since(bench.pair.prefill, before).transferred == 0
    assert metric(bench.pair.prefill, EXPIRED) >= counted + 1
    assert reply.token_ids == recomputed(bench.pair, messages).token_ids


def test_staged_blocks_say_until_when_they_are_kept(bench: Bench) -> None:
    """A prefill answer promises its blocks for their TTL, on the prefill engine's own clock."""
    answers = [
        ask(bench.pair.prefill, opening(new_session()), params=PREFILL_ONLY, max_tokens=1)
        for _ in range(2)
    ]

    first, second = (
        (answer.kv_transfer_params or {})["remote_blocks_expiry_time"] for answer in answers
    )
    assert 0 < second - first < bench.staged_ttl


def test_staged_blocks_near_their_end_are_not_read(bench: Bench) -> None:
    """A decode leg that comes within 5 s of the end computes, and leaves a right prefix cache."""
    session = new_session()
    messages = opening(session)
    reference = recomputed(bench.pair, messages)
    first = ask(bench.pair.prefill, messages, params=PREFILL_ONLY, max_tokens=1)
    assert first.kv_transfer_params is not None
    counted = metric(bench.pair.decode, EXPIRED)
    before = bench.spent(bench.pair.decode)

    pause(bench.staged_ttl - 4.5)
    params = {**first.kv_transfer_params, **_mark(session)}
    reply = ask(bench.pair.decode, messages, params=params, stream=True)

    assert bench.since(bench.pair.decode, before) == Spent(reply.prompt_tokens, 0)
    assert metric(bench.pair.decode, EXPIRED) >= counted + 1
    assert reply.token_ids == reference.token_ids
    assert ask(bench.pair.decode, messages).token_ids == reference.token_ids


def test_staged_blocks_without_an_expiry_are_not_read(bench: Bench) -> None:
    """A decode leg that is not told until when computes, and prefill has its memory back."""
    session = new_session()
    messages = opening(session)
    usage = "vllm:kv_cache_usage_perc"
    first = ask(bench.pair.prefill, messages, params=PREFILL_ONLY, max_tokens=1)
    staged = metric(bench.pair.prefill, usage)
    before = bench.spent(bench.pair.decode)

    unfenced = {**(first.kv_transfer_params or {}), "remote_blocks_expiry_time": None}
    reply = ask(bench.pair.decode, messages, params={**unfenced, **_mark(session)}, stream=True)

    assert bench.since(bench.pair.decode, before) == Spent(reply.prompt_tokens, 0)
    assert reply.token_ids == recomputed(bench.pair, messages).token_ids
    wait_until(lambda: metric(bench.pair.prefill, usage) < staged, seconds=3, what="free blocks")


def test_a_handle_of_a_dead_process_costs_a_recompute(bench: Bench) -> None:
    """A handle that names a process which is gone is not read from whoever sits there now."""
    session = new_session()
    first = _turn(bench, session, opening(session))
    messages = continued(opening(session), first)
    handle = {**bench.handle(session), "remote_engine_id": "00000000-dead"}
    before = bench.spent(bench.pair.prefill)

    reply = _turn(bench, session, messages, handle=handle)

    assert bench.since(bench.pair.prefill, before).transferred == 0
    assert reply.token_ids == recomputed(bench.pair, messages).token_ids


def test_a_local_turn_is_retained_again(bench: Bench) -> None:
    """Served from the decode engine's own cache, a turn leaves a lease that can be read."""
    session = new_session()
    first = _turn(bench, session, opening(session))
    before_local = bench.lease(session)
    messages = continued(opening(session), first)
    reference = recomputed(bench.pair, messages)
    before = bench.spent(bench.pair.decode)

    second = ask(bench.pair.decode, messages, params={**LOCAL_ONLY, **_mark(session)}, stream=True)

    assert second.token_ids == reference.token_ids
    assert bench.since(bench.pair.decode, before).computed < second.prompt_tokens / 2
    wait_until(
        lambda: bench.lease(session).name != before_local.name, seconds=5, what="a newer lease"
    )
    handle = bench.handle(session)
    assert handle["remote_num_tokens"] == second.prompt_tokens + len(second.token_ids) - 1
    following = continued(messages, second)
    third = _turn(bench, session, following, handle=handle)
    assert third.token_ids == recomputed(bench.pair, following).token_ids


def test_an_aborted_turn_is_not_reported(bench: Bench) -> None:
    """A client that leaves mid-stream leaves no lease and no blocks behind."""
    session = new_session()
    used = bench.used_blocks()
    body = {
        "model": MODEL,
        "messages": opening(session, repeat=2),
        "max_tokens": 1500,
        "ignore_eos": True,
        "stream": True,
        "kv_transfer_params": {**LOCAL_ONLY, **_mark(session)},
    }
    request = urllib.request.Request(  # noqa: S310 - loopback
        f"{bench.pair.decode.url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - loopback
        assert answer.readline().startswith(b"data: ")

    def idle() -> bool:
        return metric(bench.pair.decode, "vllm:num_requests_running") == 0

    wait_until(idle, seconds=5, what="the abort")
    pause(0.5)
    assert bench.leases(session, ended=True) == []
    assert bench.used_blocks() <= used


def test_concurrent_turns_do_not_mix(bench: Bench) -> None:
    """Several sessions at once each get their own answer and their own lease."""
    sessions = [new_session() for _ in range(4)]
    references = [recomputed(bench.pair, opening(one)).token_ids for one in sessions]
    replies: dict[str, Reply] = {}

    def run(session: str) -> None:
        replies[session] = _turn(bench, session, opening(session))

    threads = [threading.Thread(target=run, args=(one,)) for one in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [replies[one].token_ids for one in sessions] == references
    assert {bench.lease(one).tokens > 0 for one in sessions} == {True}


def test_cached_tokens_are_told(bench: Bench) -> None:
    """The usage of a pulled prefill leg says what was not computed, where the engine tells it."""
    session = new_session()
    first = _turn(bench, session, opening(session))
    messages = continued(opening(session), first)
    handle = bench.handle(session)
    body = {"model": MODEL, "messages": messages, "max_tokens": 1, "kv_transfer_params": handle}
    request = urllib.request.Request(  # noqa: S310 - loopback
        f"{bench.pair.prefill.url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - loopback
        usage = json.load(answer)["usage"]

    details = usage["prompt_tokens_details"]
    # vLLM leaves the details out unless it is started with --enable-prompt-tokens-details.
    assert details is None or details["cached_tokens"] == handle["remote_num_tokens"]
