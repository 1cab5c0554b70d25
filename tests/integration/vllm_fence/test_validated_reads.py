"""Two real vLLM engines, one of which gives away at any moment what the other reads.

No clock protects these reads: the owner releases what it likes when it likes, and writes over it at
once. The reader goes by the owner's generation word, read after the data.
"""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvplane.api.engine.v1 import engine_pb2
from kvplane.api.lease.v1 import lease_pb2
from kvplane.transfer_params import Word
from kvplane_services.local.engines import EnginePair
from tests.integration.vllm.test_reuse import continued, handle_of, new_session, opening
from tests.integration.vllm_fence.small_memory import asked_on, write_over
from tests.support.interleavings import Interleavings, random_plan
from tests.support.recording_plane import RecordingPlane
from tests.support.vllm_engines import Served, metric, recomputed, transferred, turn

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(240)]


def _counted(engine: Served) -> dict[str, float]:
    return {
        what: metric(engine, f"vllm:kvplane_reads_{what}_total")
        for what in ("accepted", "refused", "declined", "late")
    }


def _since(engine: Served, before: dict[str, float]) -> dict[str, float]:
    return {what: now - before[what] for what, now in _counted(engine).items()}


def test_reads_of_what_is_kept_are_accepted(plane: RecordingPlane, pair: EnginePair) -> None:
    """Both legs of a turn are validated and counted, and the answer is the recomputed one."""
    session = new_session()
    first = turn(pair, session, opening(session))
    messages = continued(opening(session), first)
    reference = recomputed(pair, messages)
    handle = handle_of(plane, session)
    assert handle["remote_blocks_expiry_time"] == 0.0
    assert Word.decode(handle) is not None
    before = _counted(pair.prefill), _counted(pair.decode)
    took = metric(pair.prefill, "vllm:kvplane_validation_seconds_count")

    second = turn(pair, session, messages, handle=handle)

    assert second.token_ids == reference.token_ids
    none = {"refused": 0, "declined": 0, "late": 0}
    assert _since(pair.prefill, before[0]) == {"accepted": 1, **none}
    assert _since(pair.decode, before[1]) == {"accepted": 1, **none}
    assert metric(pair.prefill, "vllm:kvplane_validation_seconds_count") == took + 1


def test_renewals_do_not_change_a_handle_with_a_word(
    plane: RecordingPlane, pair: EnginePair
) -> None:
    """A retention is reported once, however often it is renewed, and read by its first handle."""
    session = new_session()
    renewed: list[str] = []

    def renews(retention: engine_pb2.Retention) -> bool:
        renewed.append(retention.retention_id)
        return retention.session_key.session_id == session

    plane.renews = renews
    try:
        first = turn(pair, session, opening(session))
        name = plane.wait_for_session(session).retention_id
        handle = json.loads(plane.retentions[name].handle.kv_transfer_params)
        plane.wait(lambda: renewed.count(name) >= 40, seconds=20, what="renewals for 4 s")
        assert plane.reports[name] == 1
        messages = continued(opening(session), first)
        before = transferred(pair.prefill)

        second = turn(pair, session, messages, handle=handle)

        assert transferred(pair.prefill) - before == handle["remote_num_tokens"]
        assert second.token_ids == recomputed(pair, messages).token_ids
    finally:
        plane.renews = lambda _: False


@pytest.mark.parametrize("trusting", [False, True])
def test_a_read_of_what_was_written_over_is_refused(
    plane: RecordingPlane,
    pair: EnginePair,
    reads: Path,
    thread: ThreadPoolExecutor,
    *,
    trusting: bool,
) -> None:
    """The turn is recomputed; an engine that trusts what it read answers from foreign blocks."""
    session = new_session()
    first = turn(pair, session, opening(session))
    messages = continued(opening(session), first)
    reference = recomputed(pair, messages)
    handle = handle_of(plane, session)
    name = handle["remote_request_id"]
    before = _counted(pair.prefill)
    held, trust = reads / "held", reads / "trusting"
    if trusting:
        trust.touch()

    held.touch()
    try:
        asked = asked_on(thread, pair.prefill, messages, params=handle)
        plane.releases[name] = lease_pb2.END_REASON_RELEASED
        plane.wait(lambda: name in plane.ended, seconds=5, what="the release")
        write_over(pair.decode)
        held.unlink()
        reply = asked.result()
    finally:
        held.unlink(missing_ok=True)
        trust.unlink(missing_ok=True)

    assert (reply.token_ids == reference.token_ids) is not trusting
    if not trusting:
        assert _since(pair.prefill, before)["refused"] == 1


def test_reads_interleaved_with_releases_are_never_wrong(
    plane: RecordingPlane, pair: EnginePair, reads: Path
) -> None:
    """A few of the rounds of `make interleavings`."""
    dice = random.Random()
    tally = Interleavings(pair, plane, reads, histories=2).run(
        [random_plan(dice) for _ in range(6)], trusting=False
    )

    assert tally.rounds == 6
    assert tally.wrong == 0
    assert tally.verdicts.keys() <= {"ACCEPTED", "REFUSED", "NONE"}
