"""The worker's half on a stand-in for vLLM's: leases, and reads fenced by expiries."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest


def _reads(worker: Any, name: str, *, expiry: float | None) -> Any:
    worker._engine_clock_offset["owner"] = 0.0
    worker._recving_metadata[name] = SimpleNamespace(
        local_physical_block_ids=([1, 2],),
        remote=SimpleNamespace(engine_id="owner", blocks_expiry_time=expiry),
    )
    return worker._recving_metadata[name]


def test_a_read_that_is_done_too_late_is_told_to_vllm_as_failed(worker: Any) -> None:
    """Of reads that are done only those count that ended before their handles' expiry."""
    _reads(worker, "in time", expiry=2.0)
    _reads(worker, "late", expiry=0.5)
    _reads(worker, "unfenced", expiry=None)
    _reads(worker, "broken", expiry=0.5)
    everything = {"in time", "late", "unfenced", "broken"}
    worker.polled = (set(everything), {"broken"})

    done, failed = worker._pop_done_transfers({})

    assert done == everything
    assert failed == {"late", "unfenced", "broken"}
    assert worker.xfer_stats.data["num_kv_expired_reqs"] == [1, 1]
    assert worker.xfer_stats.data["kvplane_reads_late"] == [1, 1]


def test_older_vllm_is_told_of_each_late_read_by_itself(worker: Any) -> None:
    """vLLM before 0.30 pops a set, and is told of failures by a call that marks the blocks."""
    _reads(worker, "in time", expiry=2.0)
    _reads(worker, "late", expiry=0.5)
    worker.polled = {"in time", "late"}

    assert worker._pop_done_transfers({}) == {"in time", "late"}
    assert worker.failed == [("late", None)]


def test_a_read_that_still_runs_is_left_alone(worker: Any) -> None:
    """Memory that is still written to may not be given away, however late the read is."""
    _reads(worker, "late", expiry=-100.0)
    worker.polled = (set(), set())

    assert worker._pop_done_transfers({"late": [1]}) == (set(), set())


def test_vllm_is_told_not_to_begin_near_the_expiry(worker: Any) -> None:
    """What vLLM asks before each read is answered for staged and retained blocks alike."""
    assert not worker._is_turn2_read_expired(_reads(worker, "one", expiry=6.0))
    assert worker._is_turn2_read_expired(_reads(worker, "one", expiry=4.0))
    assert worker._is_turn2_read_expired(_reads(worker, "one", expiry=None))


def test_a_handshakes_duration_is_added_to_what_it_found(worker: Any) -> None:
    """The owner's clock is taken for as far ahead as it can be."""
    times = iter([10.0, 14.0])
    worker._clock.now = lambda: next(times)

    assert worker._nixl_handshake("host", 1) == ({(0, 0): "agent"}, 7.0 + 2.0)


def _step(
    worker: Any, send: dict[str, float] | None = None, *, aborted: Any = (), **orders: Any
) -> None:
    made = sys.modules["kvplane_connector.step_orders"].StepOrders(**orders)
    worker.start_load_kv(
        SimpleNamespace(
            reqs_to_send=send or {},
            reqs_in_batch={*(send or {}), *orders.get("keep", ())},
            reqs_not_processed=aborted,
            scheduler_clock=0.0,
            kvplane=made,
        )
    )


def test_what_is_released_is_free_at_the_end_of_the_very_step(worker: Any) -> None:
    """Whether reads consume it or not, and whether some ranks of a reader have read it or not."""
    _step(worker, {"kept": 30.0, "other": 30.0, "stays": 30.0}, keep={"kept", "stays"})
    worker.consumer_notification_counts_by_req["other"] = 1

    _step(worker, release={"kept", "other"})

    assert worker._get_new_notifs() == {"kept", "other"}
    assert worker._get_new_notifs() == set()
    assert worker._reqs_to_send == {"stays": 30.0}
    assert worker._reqs_to_process == {"stays"}
    assert worker.consumer_notification_counts_by_req == {}


def test_what_has_ended_is_not_released_a_second_time(worker: Any) -> None:
    """vLLM's engine dies of a request that is reported as sent twice."""
    _step(worker, {"one": 30.0}, keep={"one"})
    _step(worker, release={"one"})
    worker._get_new_notifs()

    _step(worker, release={"one", "unknown"})

    assert worker._get_new_notifs() == set()


def test_a_retention_can_be_released_in_the_step_that_begins_it(worker: Any) -> None:
    """The order may come with the news that the request has finished."""
    _step(worker, {"one": 30.0}, keep={"one"}, release={"one"})

    assert worker._get_new_notifs() == {"one"}


def test_each_kept_retention_ends_at_its_own_time(worker: Any) -> None:
    """The one that was renewed later, those of one time together, a shortened one sooner."""
    now = 0.0
    worker._clock.now = lambda: now
    _step(worker, {"a": 10.0, "b": 10.0, "c": 20.0, "d": 30.0}, keep={"a", "b", "c", "d"})
    _step(worker, deadlines={"b": 15.0, "d": 12.0})
    ended: dict[float, set[str]] = {}

    for now in (9.0, 10.0, 12.0, 14.9, 15.0, 19.0, 20.0, 31.0):
        if found := worker._get_new_notifs():
            ended[now] = found

    assert ended == {10.0: {"a"}, 12.0: {"d"}, 15.0: {"b"}, 20.0: {"c"}}
    assert worker._reqs_to_send == {}


def test_what_vllm_ended_itself_is_not_ended_again(worker: Any) -> None:
    """Between our look at the clock and its own a retention's time may come; or it is aborted."""
    _step(worker, {"a": 10.0, "b": 11.0}, keep={"a", "b", "aborted"})
    del worker._reqs_to_send["a"]
    worker._reqs_to_process.discard("a")
    _step(worker, aborted=("aborted",))
    worker._clock.now = lambda: 11.0

    assert worker._get_new_notifs() == {"b"}
    assert worker._kept == set()


def test_a_read_before_the_retention_begins_does_not_consume_it(worker: Any) -> None:
    """With steps in flight a notice may come before the step that says until when to keep."""
    _step(worker, keep={"one"})
    worker._all_notifs = lambda: {"reader": [b"one:1"]}

    assert worker.nixl_wrapper.get_new_notifs() == {"reader": []}
    assert worker.take_news().reads == {"one": 1}

    _step(worker, {"one": 30.0})
    assert worker._reqs_to_send == {"one": 30.0}
    assert worker._get_new_notifs() == set()


def test_deadlines_are_set_by_a_scheduler_that_does_not_tell_its_clock(worker: Any) -> None:
    """As vLLM 0.26 does: both halves are taken to have one clock."""
    worker._clock.now = lambda: 5.0
    made = sys.modules["kvplane_connector.step_orders"].StepOrders(deadlines={"one": 40.0})
    _step(worker, {"one": 30.0}, keep={"one"})

    worker.start_load_kv(
        SimpleNamespace(reqs_to_send={}, reqs_in_batch=(), reqs_not_processed=(), kvplane=made)
    )

    assert worker._reqs_to_send == {"one": 40.0}


@pytest.mark.parametrize(
    "notice",
    [b"one:many", b"one:", b"one", b"", b"\xff\xfe:1", b"one:1\xff", b"one:" + b"9" * 5000],
)
def test_a_notice_that_cannot_be_read_is_dropped(worker: Any, notice: bytes) -> None:
    """Any process that reached NIXL can send one, and vLLM would raise in its step loop."""
    _step(worker, {"one": 30.0}, keep={"one"})
    worker._all_notifs = lambda: {"reader": [notice, b"one:1", b"other:2", b"HB:x,y"]}

    assert worker.nixl_wrapper.get_new_notifs() == {"reader": [b"other:2", b"HB:x,y"]}
    assert worker.take_news().reads == {"one": 1}


def test_a_notice_that_cannot_be_read_is_dropped_where_nothing_is_kept(worker: Any) -> None:
    """Prefill engines are spared them like decode engines."""
    worker._all_notifs = lambda: {"reader": [b"staged:1", b"staged"]}

    assert worker.nixl_wrapper.get_new_notifs() == {"reader": [b"staged:1"]}


@pytest.mark.parametrize("readers", [0, -3])
def test_readers_that_cannot_be_are_taken_for_one(worker: Any, readers: int) -> None:
    """A number that no reader can have divides nothing by zero."""
    _step(worker, {"one": 30.0}, keep={"one"})
    worker._all_notifs = lambda: {"reader": [f"one:{readers}".encode()]}

    assert worker.nixl_wrapper.get_new_notifs() == {"reader": []}
    assert worker.take_news().reads == {"one": 1}


def test_an_engine_with_a_host_buffer_does_not_start(
    connector: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker says so before it keeps or reads anything."""
    module = connector("worker")
    monkeypatch.setattr(module.NixlPullConnectorWorker, "use_host_buffer", True)

    with pytest.raises(RuntimeError, match="host buffer"):
        module.KvplaneWorker(None, "e", None)


def test_a_rank_that_serves_nothing_keeps_account_of_nothing(worker: Any) -> None:
    """Where ranks have the same KV the first one serves it; the others would only gather."""
    worker.serves_nothing = True
    for number in range(5):
        _step(worker, {f"r{number}": 30.0}, keep={f"r{number}"})

    assert not worker._kept
