"""The scheduler's half on a stand-in for vLLM's: generation words in handles and orders."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kvplane.client.retention import EndReason, Release, Renew
from kvplane.transfer_params import KEY, LOCAL_ONLY, PREFILL_ONLY, WORD_KEY, TurnMark, Word
from kvplane_connector.generation_words import SLOTS
from kvplane_connector.kv_blocks import CacheGroup, KvBlocks
from kvplane_connector.retentions import NO_EXPIRY, RetentionLedger
from tests.unit.connector.conftest import NOW, STAGED_TTL, new_scheduler

ADDRESS, START = 0x7F00_0000_1000, 7
MARK = TurnMark("t", "m", "a", "s")
TTL = 20.0


@pytest.fixture
def ledger() -> RetentionLedger:
    return RetentionLedger(ttl=TTL, clamp_ttl=lambda ttl: ttl)


@pytest.fixture
def scheduler(connector: Callable[[str], Any], ledger: RetentionLedger) -> Any:
    """An engine whose only rank has words."""
    made = new_scheduler(connector, ledger)
    made.set_xfer_handshake_metadata({(0, 0): SimpleNamespace(kvplane_words=(ADDRESS, START))})
    return made


def _request(name: str = "r", **params: Any) -> Any:
    return SimpleNamespace(
        request_id=name,
        kv_transfer_params=params,
        prompt_token_ids=list(range(200)),
        all_token_ids=list(range(210)),
        num_tokens=210,
        num_computed_tokens=209,
        lora_request=None,
        mm_features=None,
        cache_salt=None,
    )


def _turn(name: str = "r") -> Any:
    return _request(name, **LOCAL_ONLY, **{KEY: MARK.encode()})


def _finish(scheduler: Any, request: Any) -> dict[str, Any]:
    retained, handle = scheduler.request_finished(request, ([1, 2],))
    assert retained
    return dict(handle)


def _step(scheduler: Any) -> Any:
    meta = scheduler.build_connector_meta(SimpleNamespace(num_scheduled_tokens={}))
    return getattr(meta, KEY, None)


def _over(scheduler: Any, *names: str) -> None:
    scheduler.update_connector_output(SimpleNamespace(finished_sending=set(names)))


def test_a_retained_turn_has_a_word_and_no_time(scheduler: Any, ledger: RetentionLedger) -> None:
    """Who does not know words declines; the workers hear of the slot with the next step."""
    handle = _finish(scheduler, _turn())

    assert handle["remote_blocks_expiry_time"] == NO_EXPIRY
    word = Word.decode(handle)
    assert word is not None
    assert word.places[0, 0].value == START
    assert _step(scheduler).slots == {"r": word.slot}
    assert _step(scheduler) is None
    (reported,) = ledger.changes().retentions
    assert b'"kvplane_word"' in reported.kv_transfer_params
    assert reported.deadline == NOW + TTL


def test_a_staged_prompt_has_a_word_and_its_time(scheduler: Any) -> None:
    """Who does not know words goes by the time, before which nothing gives the blocks up."""
    handle = _finish(scheduler, _request(**PREFILL_ONLY))

    assert handle["remote_blocks_expiry_time"] == NOW + STAGED_TTL
    assert Word.decode(handle) is not None


def test_a_turn_without_a_mark_is_vllms_own(scheduler: Any) -> None:
    """Its handle is read by others' rules."""
    handle = _finish(scheduler, _request(**LOCAL_ONLY))

    assert WORD_KEY not in handle
    assert handle["remote_blocks_expiry_time"] > NOW


def test_a_release_is_an_order_of_the_next_step(scheduler: Any, ledger: RetentionLedger) -> None:
    """And its slot is free once all ranks have carried it out."""
    first = Word.decode(_finish(scheduler, _turn()))
    _step(scheduler)

    ledger.apply([Release("r", "leases/l", 1, EndReason.RELEASED)], sent_at=NOW)

    assert _step(scheduler).release == {"r"}
    _over(scheduler, "r")
    for number in range(SLOTS - 1):
        _finish(scheduler, _turn(f"r{number}"))
    again = Word.decode(_finish(scheduler, _turn("again")))
    assert first is not None
    assert again is not None
    assert again.slot == first.slot
    assert again.places[0, 0].value == START + 1


def test_without_a_free_word_a_turn_is_fenced_and_that_is_said_once(
    scheduler: Any, ledger: RetentionLedger, caplog: pytest.LogCaptureFixture
) -> None:
    """Its handle says until when it is kept, and it is kept until then."""
    for number in range(SLOTS):
        _finish(scheduler, _turn(f"r{number}"))

    handles = [_finish(scheduler, _turn(name)) for name in ("one more", "and one")]

    assert [handle["remote_blocks_expiry_time"] for handle in handles] == [NOW + TTL] * 2
    assert all(WORD_KEY not in handle for handle in handles)
    assert ledger.may_be_freed_at("one more") == NOW + TTL
    assert len([one for one in caplog.records if "No generation word" in one.message]) == 1


def test_ranks_without_words_are_fenced(connector: Callable[[str], Any]) -> None:
    """An older vLLM, another NIXL backend, or a setting."""
    ledger = RetentionLedger(ttl=TTL, clamp_ttl=lambda ttl: ttl)
    plain = new_scheduler(connector, ledger)
    plain.set_xfer_handshake_metadata({(0, 0): SimpleNamespace()})

    handle = _finish(plain, _turn())

    assert WORD_KEY not in handle
    assert handle["remote_blocks_expiry_time"] == NOW + TTL
    assert _step(plain) is None


def test_workers_hear_of_the_word_of_what_they_read(scheduler: Any) -> None:
    """With the step that begins the read, and of reads only."""
    handle = _finish(scheduler, _request("owner", **PREFILL_ONLY))
    _step(scheduler)
    reads, has_it = (_request(name, **handle) for name in ("reads", "has it"))

    scheduler.update_state_after_alloc(reads, None, 128)
    scheduler.update_state_after_alloc(has_it, None, 0)

    assert dict(_step(scheduler).words) == {"reads": Word.decode(handle)}
    assert _step(scheduler) is None


def test_a_handle_ends_with_the_tokens(
    connector: Callable[[str], Any], ledger: RetentionLedger
) -> None:
    """A block that vLLM took for what a stop cut off is no part of it, in any cache group."""
    blocks = KvBlocks([CacheGroup(11), CacheGroup(11, most_tokens=40)])
    scheduler = new_scheduler(connector, ledger, blocks)
    every, window = list(range(1, 21)), [0] * 15 + list(range(31, 36))

    _, handle = scheduler.request_finished(_turn(), (every, window))

    # 209 tokens.
    assert handle["remote_block_ids"] == (every[:-1], window[:-1])


def test_a_model_with_states_retains_no_turn(
    connector: Callable[[str], Any], ledger: RetentionLedger
) -> None:
    """What a state has taken in cannot be cut to what a proof says."""
    blocks = KvBlocks([CacheGroup(128), CacheGroup(128, by_position=False)])
    scheduler = new_scheduler(connector, ledger, blocks)

    retained, handle = scheduler.request_finished(_turn(), ([1, 2], [3]))

    assert (retained, handle) == (False, None)
    assert scheduler._reqs_not_processed == {"r"}


@pytest.mark.parametrize("name", ["ä" * 300, "r" * 513, "half \ud800"])
def test_a_turn_whose_id_no_message_can_carry_is_not_retained(
    scheduler: Any, ledger: RetentionLedger, name: str
) -> None:
    """Bytes count, and the plane refuses the whole frame: others would be lost with it."""
    retained, handle = scheduler.request_finished(_turn(name), ([1, 2],))

    assert (retained, handle) == (False, None)
    assert not ledger.retentions


def test_turns_that_end_in_a_pause_are_given_up_and_staged_prompts_stay(
    scheduler: Any, ledger: RetentionLedger
) -> None:
    """What is retained goes with the next step, each time; decode legs wait for the rest."""
    _finish(scheduler, _turn("a"))
    _finish(scheduler, _turn("b"))
    _finish(scheduler, _request("staged", **PREFILL_ONLY))
    _step(scheduler)
    ledger.acknowledge(ledger.changes())

    assert not scheduler.give_up_retentions()
    ledger.apply([Renew("a", "leases/l", 1, 60.0)], sent_at=NOW)
    orders = _step(scheduler)
    assert (orders.release, orders.deadlines) == ({"a", "b"}, {})
    assert not scheduler.give_up_retentions()
    assert _step(scheduler) is None
    # A turn that ends meanwhile goes as well.
    _finish(scheduler, _turn("c"))
    ledger.changes()
    _over(scheduler, "a", "b")
    assert not scheduler.give_up_retentions()
    assert _step(scheduler).release == {"c"}
    _over(scheduler, "c")

    assert scheduler.give_up_retentions()
    assert set(ledger.changes().ended) == {(name, EndReason.RECLAIMED) for name in "abc"}
