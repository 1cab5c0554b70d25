"""The worker's half on a stand-in for vLLM's: reads validated by generation words."""

import ctypes
import itertools
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kvplane.transfer_params import Word, WordPlace
from kvplane_connector.generation_words import SLOTS
from tests.support.fake_nixl import Transfer

TABLE, SLOT, VALUE = 0x1000, 3, 77
PLACE = TABLE + 8 * SLOT
WORD = Word(SLOT, 8, {(0, 0): WordPlace(TABLE, VALUE)})


@pytest.fixture(autouse=True)
def registered(worker: Any) -> None:
    """The caches are registered, and the owner's word is what a handle says it is."""
    worker._clock.now = (tick * 50e-6 for tick in itertools.count()).__next__
    worker.register_kv_caches({})
    nixl = worker.nixl_wrapper
    landing = ctypes.create_string_buffer(8)
    worker.landing = landing
    worker.data_list = nixl.prep_xfer_dlist("data", [(ctypes.addressof(landing), 8, 0)])
    nixl.words = {PLACE: VALUE, ctypes.addressof(landing): 0}


def _step(
    worker: Any, send: dict[str, float] | None = None, *, aborted: Any = (), **orders: Any
) -> None:
    names = orders.get("words", {})
    made = sys.modules["kvplane_connector.step_orders"].StepOrders(**orders)
    for name in names:
        worker._recving_metadata[name] = SimpleNamespace(
            local_physical_block_ids=([1, 2],),
            remote=SimpleNamespace(engine_id="owner", blocks_expiry_time=0.0),
        )
    worker.start_load_kv(
        SimpleNamespace(
            reqs_to_send=send or {},
            reqs_in_batch=orders.get("keep", set()),
            reqs_not_processed=(),
            reqs_to_recv={name: worker._recving_metadata[name] for name in names},
            scheduler_clock=0.0,
            kvplane=made,
        )
    )


def _read(worker: Any, name: str = "r") -> None:
    """A step in which a request begins to read what has a word."""
    _step(worker, words={name: WORD})
    assert not worker._is_turn2_read_expired(worker._recving_metadata[name])
    worker._read_blocks(
        request_id=name, dst_engine_id="owner", read_spec=SimpleNamespace(remote_rank=0)
    )


def _words(worker: Any) -> Any:
    address, start = worker.xfer_handshake_metadata.kvplane_words
    values = (ctypes.c_uint64 * SLOTS).from_address(address)
    return lambda slot: values[slot] - start


def _slow(which: Callable[[Transfer], bool]) -> Callable[[Transfer], str]:
    return lambda one: "PROC" if which(one) else "DONE"


def test_others_hear_of_the_words_at_first_contact(worker: Any) -> None:
    """vLLM's message stands as it was, and says besides where the words are."""
    told = worker.xfer_handshake_metadata

    assert (told.compatibility_hash, told.agent_metadata_bytes) == ("hash", b"meta")
    assert worker._registered_descs == [[(told.kvplane_words[0], (SLOTS + 1024) * 8, 0, "")]]


def test_a_word_changes_before_the_end_of_its_retention_is_told(worker: Any) -> None:
    """Whatever ends it: a reader that consumes, an order, its expiry."""
    words = _words(worker)
    slots = {"read": 0, "released": 1, "expired": 2, "stays": 3}
    worker._reqs_to_process.add("read")
    _step(worker, keep=set(slots) - {"read"})
    _step(worker, dict.fromkeys(slots, 30.0), slots=slots)
    assert worker.get_transfer_results().finished_sending == set()
    worker.sent = {"read"}
    _step(worker, release={"released"}, deadlines={"expired": -1.0})

    over = worker.get_transfer_results().finished_sending

    assert over == {"read", "released", "expired"}
    assert [words(slot) for slot in range(4)] == [1, 1, 1, 0]


def test_a_read_that_is_over_before_its_slot_is_known_changes_the_word(worker: Any) -> None:
    """With asynchronous scheduling a reader can be done a step earlier."""
    words = _words(worker)
    worker.sent = {"early"}
    worker.get_transfer_results()

    _step(worker, slots={"early": 5})

    assert words(5) == 1


def test_at_a_shutdown_no_word_stays(worker: Any) -> None:
    """Who still reads is refused, and vLLM is shut down as ever, any number of times."""
    words = _words(worker)

    worker.shutdown()
    worker.shutdown()

    assert words(0) == words(SLOTS - 1) == 1
    assert worker.is_shut_down
    assert worker.nixl_wrapper.released_lists == [0]


def test_a_read_is_good_and_its_owner_told_after_the_word(worker: Any) -> None:
    """The notice that lets the owner give up its blocks is not sent with the data."""
    seen: list[Any] = []

    def done(_: Transfer) -> str:
        seen.append(list(worker.nixl_wrapper.told))
        return "DONE"

    worker.nixl_wrapper.ends = done
    _read(worker)

    results = worker.get_transfer_results()

    assert results.finished_recving == {"r"}
    assert results.failed_recving == set()
    data, word = worker.nixl_wrapper.transfers
    assert (data.notice, word.notice) == (b"", b"")
    assert word.source == PLACE
    assert seen == [[], []]
    assert worker.nixl_wrapper.told == [("agent", b"theirs:1")]
    assert worker.xfer_stats.data["kvplane_reads_accepted"] == [1]
    assert len(worker.xfer_stats.data["kvplane_validation_seconds"]) == 1


def test_what_was_given_away_meanwhile_has_failed(worker: Any) -> None:
    """The request is recomputed, and nobody is told that the blocks are not needed."""
    _read(worker)
    worker.nixl_wrapper.words[PLACE] += 1

    results = worker.get_transfer_results()

    assert results.finished_recving == results.failed_recving == {"r"}
    assert worker.nixl_wrapper.told == []
    assert worker.xfer_stats.data["kvplane_reads_refused"] == [1]
    assert not worker._reads.names


def test_the_word_is_not_looked_at_before_all_data_is_there(worker: Any) -> None:
    """A word that was right then would say nothing of what came later."""
    data_source = worker.nixl_wrapper.lists[worker.data_list][0][0]
    worker.nixl_wrapper.ends = _slow(lambda one: one.source == data_source)
    _read(worker)

    assert worker.get_transfer_results().finished_recving == set()

    assert [one.begun for one in worker.nixl_wrapper.transfers] == [True, False]
    worker.nixl_wrapper.ends = lambda _: "DONE"
    assert worker.get_transfer_results().finished_recving == {"r"}


def test_a_word_on_its_way_keeps_the_request_among_those_that_read(worker: Any) -> None:
    """An abort, a shutdown and the clean-up of engines find it where they find all reads."""
    worker.nixl_wrapper.ends = _slow(lambda one: one.source == PLACE)
    _read(worker)

    assert worker.get_transfer_results().finished_recving == set()
    assert worker._recving_transfers["r"] == [worker.nixl_wrapper.transfers[1]]

    worker.nixl_wrapper.ends = lambda _: "DONE"
    assert worker.get_transfer_results().finished_recving == {"r"}
    assert worker._reads.free_words == 1024


def test_a_word_that_cannot_be_read_fails_the_request(worker: Any) -> None:
    """Its owner is gone, for example; words that it would have landed in are used again."""
    worker.nixl_wrapper.ends = lambda one: "ERR" if one.source == PLACE else "DONE"
    _read(worker)
    assert worker.get_transfer_results().finished_recving == set()

    results = worker.get_transfer_results()

    assert results.failed_recving == {"r"}
    assert worker._reads.free_words == 1024
    assert not worker._reads.names


def test_words_that_nixl_cannot_fetch_fail_the_request_at_once(worker: Any) -> None:
    """The next step would find the same."""
    worker.nixl_wrapper.fails = {"prep agent"}
    _read(worker)

    assert worker.get_transfer_results().failed_recving == {"r"}

    assert worker.failed == [("r", None)]


def test_a_read_whose_word_nobody_asks_for_has_failed(
    worker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A vLLM that reads in another way as well recomputes, and does not use what it read."""
    _step(worker, words={"r": WORD, "empty": WORD})
    data = worker.nixl_wrapper.make_prepped_xfer(
        "READ", worker.data_list, [0], worker.data_list, [0]
    )
    worker.nixl_wrapper.transfer(data)
    # Nothing of the second falls to this rank.
    worker._recving_transfers.update({"r": [data], "empty": []})

    results = worker.get_transfer_results()

    assert results.finished_recving == {"r", "empty"}
    assert results.failed_recving == {"r"}
    assert "its word was not asked for" in caplog.text


def test_a_read_that_fails_in_part_is_waited_for(worker: Any) -> None:
    """Its rest is no read that passed by the words."""
    worker.nixl_wrapper.ends = _slow(lambda _: True)
    _read(worker)
    first = worker._recving_transfers["r"][0]
    worker._recving_transfers["r"].append(
        worker.nixl_wrapper.make_prepped_xfer("READ", worker.data_list, [0], worker.data_list, [0])
    )
    worker.nixl_wrapper.transfer(worker._recving_transfers["r"][1])
    first.state = "ERR"
    assert worker.get_transfer_results().finished_recving == set()

    worker.nixl_wrapper.ends = lambda _: "DONE"

    results = worker.get_transfer_results()
    assert results.finished_recving == results.failed_recving == {"r"}
    assert not worker._reads.names


def test_a_read_without_a_word_is_fenced_as_ever(worker: Any) -> None:
    """Its owner is told with the data, and its expiry counts."""
    worker._engine_clock_offset["owner"] = 0.0
    worker._recving_metadata["r"] = SimpleNamespace(
        local_physical_block_ids=([1, 2],),
        remote=SimpleNamespace(engine_id="owner", blocks_expiry_time=0.0),
    )
    assert worker._is_turn2_read_expired(worker._recving_metadata["r"])
    assert worker.xfer_stats.data["kvplane_reads_declined"] == [1]
    worker._recving_metadata["r"].remote.blocks_expiry_time = 30.0
    worker._read_blocks(
        request_id="r", dst_engine_id="owner", read_spec=SimpleNamespace(remote_rank=0)
    )

    assert worker.get_transfer_results().finished_recving == {"r"}

    assert worker.nixl_wrapper.transfers[0].notice == b"theirs:1"
    assert len(worker.nixl_wrapper.transfers) == 1


@pytest.mark.parametrize("without", ["setting", "backend", "memory"])
def test_without_words_reads_are_fenced(worker: Any, without: str) -> None:
    """Where words are not wanted, not trusted or not taken, nobody is told of any."""
    fenced = type(worker)(None, "e", None, validate=without != "setting")
    if without == "backend":
        fenced.nixl_backends = ["UCX", "MOONCAKE"]
    if without == "memory":
        fenced.nixl_wrapper.fails = {"register_memory"}

    fenced.register_kv_caches({})

    assert not hasattr(fenced.xfer_handshake_metadata, "kvplane_words")
    words = {"r": WORD}
    _step(fenced, slots={"one": 1}, words=words)
    assert fenced._is_turn2_read_expired(fenced._recving_metadata["r"])
    assert fenced.get_transfer_results().finished_sending == set()
