"""Two real vLLM engines: what a prefill engine reads of a decode engine, and what it answers."""

import json
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kvplane.api.lease.v1 import lease_pb2
from kvplane.transfer_params import KEY, LOCAL_ONLY, PREFILL_ONLY, TurnMark, decode_proof
from kvplane_services.local.engines import EnginePair
from tests.support.recording_plane import RecordingPlane
from tests.support.vllm_engines import (
    MODEL,
    Messages,
    Reply,
    Served,
    ask,
    computed,
    local_turn,
    metric,
    recomputed,
    transferred,
    turn,
)

QUESTION = "Which change broke the replication test of the block service? The log says this: "


def opening(session_id: str) -> Messages:
    """A first message of about 700 tokens, unlike that of any other session."""
    return [{"role": "user", "content": f"{session_id} {QUESTION * 8}"}]


def continued(messages: Messages, reply: Reply, more: str = "And then?") -> Messages:
    return [
        *messages,
        {"role": "assistant", "content": reply.text},
        {"role": "user", "content": more},
    ]


def handle_of(plane: RecordingPlane, session_id: str, count: int = 1) -> Mapping[str, Any]:
    """The handle of a session's newest retention, as a router would hand it out."""
    retention = plane.wait_for_session(session_id, count)
    handle: Mapping[str, Any] = json.loads(retention.handle.kv_transfer_params)
    return handle


def new_session() -> str:
    return f"s-{uuid.uuid4().hex[:12]}"


def _counted(engine: Served, name: str) -> float:
    return metric(engine, f"vllm:kvplane_{name}_total")


def test_engines_register_with_all_that_the_plane_needs(
    plane: RecordingPlane, pair: EnginePair
) -> None:
    """Both engines tell their role, addresses, cache layout and versions."""
    plane.wait(
        lambda: {one.engine_id for one in plane.registrations} >= {"prefill-0", "decode-0"},
        seconds=10,
        what="both register",
    )
    engines = {one.engine_id: one.engine for one in plane.registrations}
    prefill, decode = engines["prefill-0"], engines["decode-0"]

    assert (prefill.role, decode.role) == (1, 2)
    assert decode.endpoint == pair.decode.url
    assert list(decode.models) == [MODEL]
    assert (decode.nixl.host, decode.nixl.port) == (
        "127.0.0.1",
        pair.decode.options.side_channel_port,
    )
    assert decode.nixl.engine_id
    assert decode.layout.block_size == 128
    assert decode.layout.total_blocks == 399
    assert decode.layout.dtype == "float32"
    assert decode.layout.compatibility_hash == prefill.layout.compatibility_hash != ""
    assert decode.build.connector == 1
    assert decode.build.vllm_version.startswith("0.")
    assert decode.build.nixl_connector_version >= 5


def test_a_streamed_turn_is_retained_and_reported(plane: RecordingPlane, pair: EnginePair) -> None:
    """A streaming client's turn is reported with a readable handle, and its chunks hold none."""
    session = new_session()

    reply = turn(pair, session, opening(session), decision_id="d-1")

    retention = plane.wait_for_session(session)
    handle = json.loads(retention.handle.kv_transfer_params)
    proof = decode_proof(handle)
    assert not any("kv_transfer_params" in line for line in reply.raw)
    assert retention.decision_id == "d-1"
    assert retention.message_digest == b"\x01\x02"
    assert (retention.session_key.model, retention.session_key.session_id) == (MODEL, session)
    # The last token was sampled and never fed back.
    assert retention.tokens == reply.prompt_tokens + len(reply.token_ids) - 1
    assert retention.blocks == -(-retention.tokens // 128)
    assert 0 < retention.remaining.ToMilliseconds() <= plane.lease_ttl * 1000
    assert handle["do_remote_decode"] is True
    assert handle["remote_num_tokens"] == retention.tokens
    assert proof is not None
    assert list(proof.digests) == list(retention.handle.digests.digests)


def test_the_next_turn_reads_its_history(plane: RecordingPlane, pair: EnginePair) -> None:
    """By vLLM's own count prefill reads all that decode holds; the answer is the recomputed one."""
    session = new_session()
    first = turn(pair, session, opening(session))
    messages = continued(opening(session), first)
    reference = recomputed(pair, messages)
    handle = handle_of(plane, session)
    before = transferred(pair.prefill), computed(pair.prefill)

    second = turn(pair, session, messages, handle=handle)

    assert transferred(pair.prefill) - before[0] == handle["remote_num_tokens"]
    assert computed(pair.prefill) - before[1] == second.prompt_tokens - handle["remote_num_tokens"]
    assert second.token_ids == reference.token_ids


def test_history_edited_inside_a_block_is_read_up_to_the_edit(
    plane: RecordingPlane, pair: EnginePair
) -> None:
    """Only tokens before the edit are read, in whole chunks of the proof; the answer is exact.

    The engine counts that it read less than it was offered, and why.
    """
    session = new_session()
    first = turn(pair, session, opening(session))
    edited = opening(session)
    text = edited[0]["content"]
    # The role's marker is token 0, so character 300 is token 301: in block 2, in chunk 4.
    edited[0]["content"] = text[:300] + ("#" if text[300] != "#" else "+") + text[301:]
    messages = continued(edited, first)
    reference = recomputed(pair, messages)
    handle = handle_of(plane, session)
    counts = ("handles_cut", "handle_tokens_readable", "handle_tokens_offered")
    before = transferred(pair.prefill), [_counted(pair.prefill, one) for one in counts]

    second = turn(pair, session, messages, handle=handle)

    assert transferred(pair.prefill) - before[0] == 256
    assert second.token_ids == reference.token_ids
    after = [_counted(pair.prefill, one) for one in counts]
    grown = [new - old for new, old in zip(after, before[1], strict=True)]
    assert grown == [1, 256, handle["remote_num_tokens"]]


def test_nothing_is_read_for_another_conversation(plane: RecordingPlane, pair: EnginePair) -> None:
    """A handle of unrelated tokens is not read, however the router came to send it."""
    owner, other = new_session(), new_session()
    turn(pair, owner, opening(owner))
    messages: Messages = [{"role": "user", "content": "Tell me something else. " * 20}]
    reference = recomputed(pair, messages)
    handle = handle_of(plane, owner)
    before = transferred(pair.prefill)

    reply = turn(pair, other, messages, handle=handle)

    assert transferred(pair.prefill) == before
    assert reply.token_ids == reference.token_ids


def test_nothing_is_read_without_proof_or_fence(plane: RecordingPlane, pair: EnginePair) -> None:
    """A handle that lost its proof or its expiry on the way is declined; the turn recomputes."""
    session = new_session()
    first = turn(pair, session, opening(session))
    messages = continued(opening(session), first)
    reference = recomputed(pair, messages)
    handle = handle_of(plane, session)
    before = transferred(pair.prefill)
    bare = {name: value for name, value in handle.items() if name != KEY}
    unfenced = {**handle, "remote_blocks_expiry_time": None}

    replies = [turn(pair, new_session(), messages, handle=one) for one in (bare, unfenced)]

    assert transferred(pair.prefill) == before
    assert [one.token_ids for one in replies] == [reference.token_ids] * 2


def test_forty_forks_read_one_retention_and_free_it_once(
    plane: RecordingPlane, pair: EnginePair
) -> None:
    """A read consumes nothing: forks read one after the other and at once, and are counted."""
    session = new_session()
    first = turn(pair, session, opening(session))
    handle = handle_of(plane, session)
    name = handle["remote_request_id"]

    def fork(messages: Messages) -> Reply:
        # With the newest handle, as a router would.
        newest = handle_of(plane, session)
        return turn(pair, new_session(), messages, handle=newest, max_tokens=4)

    forks = [continued(opening(session), first, f"Go on with option {n}.") for n in range(40)]
    before = transferred(pair.prefill)

    replies = [fork(one) for one in forks[:2]]
    with ThreadPoolExecutor(4) as at_once:
        replies += at_once.map(fork, forks[2:])

    assert transferred(pair.prefill) - before == 40 * handle["remote_num_tokens"]
    plane.wait(lambda: plane.reads.get(name) == 40, seconds=5, what="40 reads reported")
    assert name in plane.retentions
    assert metric(pair.decode, "vllm:nixl_num_notifications_after_expiry_total") == 0

    plane.releases[name] = lease_pb2.END_REASON_RELEASED
    with ThreadPoolExecutor(4) as at_once:
        references = list(at_once.map(lambda one: recomputed(pair, one, max_tokens=4), forks))
    plane.wait(lambda: name in plane.ended, seconds=plane.lease_ttl + 3, what="the release")

    assert [one.token_ids for one in replies] == [one.token_ids for one in references]
    assert (plane.ended[name], plane.ends[name]) == (lease_pb2.END_REASON_RELEASED, 1)


def test_a_local_turn_is_retained_and_can_be_read(plane: RecordingPlane, pair: EnginePair) -> None:
    """A turn that decode served from its own cache is retained like any other."""
    session = new_session()
    first = turn(pair, session, opening(session))
    plane.wait_for_session(session)
    messages = continued(opening(session), first)
    second = local_turn(pair, session, messages)
    messages = continued(messages, second)
    reference = recomputed(pair, messages)
    handle = handle_of(plane, session, 2)
    before = transferred(pair.prefill)

    third = turn(pair, session, messages, handle=handle)

    assert transferred(pair.prefill) - before == handle["remote_num_tokens"]
    assert third.token_ids == reference.token_ids


def test_another_cache_salt_reads_nothing(plane: RecordingPlane, pair: EnginePair) -> None:
    """Equal tokens under another salt are another prompt."""
    session = new_session()
    first = turn(pair, session, opening(session))
    handle = handle_of(plane, session)
    messages = continued(opening(session), first)
    before = transferred(pair.prefill)

    ask(pair.prefill, messages, params=handle, max_tokens=1, cache_salt="tenant-b")

    assert transferred(pair.prefill) == before


def test_requests_without_a_mark_are_vllms_own(plane: RecordingPlane, pair: EnginePair) -> None:
    """Nothing is reported of them, and a plain answer's parameters are what vLLM sends."""
    messages: Messages = [{"role": "user", "content": "Just pass through. " * 10}]
    known = set(plane.retentions)

    first = ask(pair.prefill, messages, params=PREFILL_ONLY, max_tokens=1)
    reply = ask(pair.decode, messages, params=first.kv_transfer_params)
    plain = ask(pair.decode, messages)

    assert reply.kv_transfer_params is not None
    assert KEY not in reply.kv_transfer_params
    assert reply.kv_transfer_params["do_remote_decode"] is True
    assert plain.kv_transfer_params is None
    assert set(plane.retentions) - known == set()


def test_a_marked_answer_that_is_not_streamed_keeps_vllms_parameters(
    plane: RecordingPlane, pair: EnginePair
) -> None:
    """Clients that read the parameters themselves find vLLM's keys, with the lease's expiry."""
    session = new_session()
    params = {**LOCAL_ONLY, KEY: TurnMark("", MODEL, "", session).encode()}

    reply = ask(pair.decode, opening(session), params=params)

    retention = plane.wait_for_session(session)
    reported = json.loads(retention.handle.kv_transfer_params)
    assert reply.kv_transfer_params is not None
    assert KEY not in reply.kv_transfer_params
    assert reply.kv_transfer_params["remote_request_id"] == reported["remote_request_id"]
    assert (
        reply.kv_transfer_params["remote_blocks_expiry_time"]
        <= reported["remote_blocks_expiry_time"]
    )
