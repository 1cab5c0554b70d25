import tomllib
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvplane_connector import __version__
from kvplane_connector.versions import (
    UnsupportedVllmError,
    can_validate,
    clock_ahead,
    context_ranks,
    data_parallel_rank,
    has_embeddings,
    rank_of,
    reader_counts,
    reaps_in_order,
    require_engines_own_memory,
    require_failures_told,
    require_fence,
    require_supported,
    watermark,
)


@pytest.mark.parametrize("version", ["0.26.0", "0.32.0", "0.33.0rc1", "1.0", "0.27.1.dev3+cpu"])
def test_newer_ones_are_taken(version: str) -> None:
    """vLLM 0.26 and all later ones are supported, pre-releases too."""
    require_supported(version)


@pytest.mark.parametrize("version", ["0.25.1", "0.9.2", "dev", "", "0.1.dev1"])
def test_older_ones_are_refused_with_what_to_do(version: str) -> None:
    """An old or unknown version is named, and what is needed instead."""
    with pytest.raises(UnsupportedVllmError, match=r"needs vLLM 0\.26 or later"):
        require_supported(version)


def test_a_worker_that_does_not_ask_the_fence_is_refused() -> None:
    """A vLLM that reads without asking is named with what it lacks, instead of read along with."""
    asks = dict.fromkeys(("_is_turn2_read_expired", "_pop_done_transfers", "_nixl_handshake"))
    require_fence(type("Asks", (), asks), "0.32.0")
    del asks["_pop_done_transfers"]

    with pytest.raises(UnsupportedVllmError, match=r"vLLM 0\.99\.0, .* no _pop_done_transfers\."):
        require_fence(type("Reads", (), asks), "0.99.0")


@pytest.mark.parametrize(
    ("hybrid", "told_by_name", "taken"),
    [(False, True, True), (True, True, True), (False, False, True), (True, False, False)],
)
def test_old_vllm_with_several_kinds_of_cache_is_refused(
    *, hybrid: bool, told_by_name: bool, taken: bool
) -> None:
    """Before 0.30 vLLM forgets failed reads of such models, so they are not begun with."""
    worker = SimpleNamespace(_is_hma_required=hybrid, get_transfer_results=object())
    vllms = type("Worker", (), {"get_transfer_results": None} if told_by_name else {})

    with nullcontext() if taken else pytest.raises(UnsupportedVllmError, match=r"0\.30 or later"):
        require_failures_told(worker, vllms)


def test_copies_in_host_memory_are_refused() -> None:
    """They lack what an engine generated, and would be read in the place of it."""
    require_engines_own_memory(SimpleNamespace(use_host_buffer=False))

    with pytest.raises(UnsupportedVllmError, match=r'"kv_buffer_device": "cpu"'):
        require_engines_own_memory(SimpleNamespace(use_host_buffer=True))


def test_reads_are_validated_where_all_that_it_takes_is_there() -> None:
    """vLLM before 0.30 tells the owner with the data, so that its reads can only be fenced."""
    hooks = {
        "get_transfer_results": None,
        "_read_blocks": None,
        "_send_pending_recv_notifs": None,
    }

    assert can_validate(type("New", (), hooks))
    del hooks["_send_pending_recv_notifs"]
    assert not can_validate(type("Old", (), hooks))


def test_the_way_of_reaping_is_seen() -> None:
    """vLLM that scans all expiries needs no order among them."""
    scans = type("Scans", (), {"_reap_expired_send_leases": None})

    assert not reaps_in_order(scans)
    assert reaps_in_order(object)


def test_the_connector_tells_the_packages_version() -> None:
    """Engines register with the version of the distribution that holds the connector."""
    pyproject = Path(__file__).parents[3] / "pyproject.toml"

    assert tomllib.loads(pyproject.read_text())["project"]["version"] == __version__


def test_clocks_are_taken_for_one_where_the_schedulers_is_not_told() -> None:
    """vLLM 0.26 sends no time of the scheduler, later ones do."""
    assert clock_ahead(SimpleNamespace(), 50.0) == 0.0
    assert clock_ahead(SimpleNamespace(scheduler_clock=20.0), 50.0) == 30.0


def test_readers_are_counted_as_each_vllm_does() -> None:
    """Before 0.29 there is one account of the ranks that have read, and two since."""
    counts, expected = {"it": 1}, {"it": 2}
    old = SimpleNamespace(consumer_notification_counts_by_req=counts)
    new = SimpleNamespace(
        consumer_notification_counts_by_req=counts, expected_consumer_notifications_by_req=expected
    )

    assert reader_counts(old) == (counts,)
    assert reader_counts(new) == (counts, expected)


def test_what_only_newer_ones_tell_is_taken_for_what_older_ones_do() -> None:
    """No watermark, no parts of blocks, one count of data parallel ranks, one kind of rank."""
    old = SimpleNamespace(data_parallel_rank=2)
    new = SimpleNamespace(
        watermark=0.01,
        data_parallel_rank=0,
        data_parallel_index=3,
        decode_context_parallel_size=2,
        prefill_context_parallel_size=4,
    )

    assert (watermark(old), watermark(new)) == (0.0, 0.01)
    assert (data_parallel_rank(old), data_parallel_rank(new)) == (2, 3)
    assert (context_ranks(old), context_ranks(new)) == (1, 8)
    assert (rank_of(5), rank_of((1, 5))) == ((0, 5), (1, 5))


def test_embeddings_in_a_prompt_are_seen_however_it_says_so() -> None:
    """A prompt may be embeddings, or tokens with some among them."""
    tokens = SimpleNamespace(prompt_embeds=None)
    mixed = SimpleNamespace(prompt_embeds=None, prompt_is_token_ids=[True, False])

    assert not has_embeddings(tokens)
    assert has_embeddings(mixed)
    assert has_embeddings(SimpleNamespace(prompt_embeds=[0.1]))
