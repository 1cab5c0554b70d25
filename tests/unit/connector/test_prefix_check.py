from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplane.digest import CHUNK_TOKENS, DigestChain, chain_of, context_of
from kvplane_connector.prefix_check import Outcome, cut_handle

BLOCK = 16
CONTEXT = context_of()
HISTORY = list(range(1000, 1300))


def params(tokens: int = len(HISTORY), **changed: Any) -> dict[str, Any]:
    blocks = -(-tokens // BLOCK)
    return {
        "remote_num_tokens": tokens,
        "remote_blocks_expiry_time": 12.5,
        "remote_block_ids": [list(range(1, blocks + 1))],
        **changed,
    }


CHAIN = chain_of(HISTORY, CONTEXT)


def test_a_prompt_that_extends_the_history_reads_it_whole() -> None:
    """All tokens and all blocks that hold them are read."""
    cut = cut_handle(params(), CHAIN, [*HISTORY, 1, 2, 3], CONTEXT, BLOCK)

    assert cut.outcome is Outcome.WHOLE
    assert cut.tokens == 300
    assert cut.block_ids == [list(range(1, 20))]


def test_blocks_behind_the_tokens_are_left_out() -> None:
    """A block that is set aside and not filled would shift the reader, which aligns at the end."""
    handle = params(remote_block_ids=[list(range(1, 22))])

    cut = cut_handle(handle, CHAIN, HISTORY, CONTEXT, BLOCK)

    assert cut.block_ids == [list(range(1, 20))]


def test_an_edit_cuts_at_the_last_chunk_before_it() -> None:
    """A prompt that differs at token 200 reads the three chunks, and their blocks, before it."""
    prompt = [*HISTORY]
    prompt[200] = 7

    cut = cut_handle(params(), CHAIN, prompt, CONTEXT, BLOCK)

    assert cut.outcome is Outcome.CUT
    assert cut.tokens == 3 * CHUNK_TOKENS
    assert cut.block_ids == [list(range(1, 13))]


def test_a_shorter_prompt_reads_no_more_than_it_has() -> None:
    """A prompt that is a prefix of the history reads its own whole chunks."""
    cut = cut_handle(params(), CHAIN, HISTORY[:130], CONTEXT, BLOCK)

    assert (cut.outcome, cut.tokens) == (Outcome.CUT, 128)


def test_every_group_is_cut_from_the_front() -> None:
    """Models with several cache groups read the same tokens of each."""
    handle = params(remote_block_ids=[list(range(1, 20)), list(range(101, 120))])
    prompt = [*HISTORY[:100], 7]

    cut = cut_handle(handle, CHAIN, prompt, CONTEXT, BLOCK)

    assert cut.block_ids == [[1, 2, 3, 4], [101, 102, 103, 104]]


@pytest.mark.parametrize(
    "window",
    [
        pytest.param([114, 115, 116, 117, 118, 119], id="its tail"),
        pytest.param([0] * 3 + list(range(104, 120)), id="all of it, but for what it has passed"),
        pytest.param(list(range(101, 139)), id="smaller blocks"),
    ],
)
def test_a_windows_blocks_are_not_taken_for_the_first_ones(window: list[int]) -> None:
    """A prefix that needs fewer blocks than a window kept does not get the window's instead."""
    handle = params(remote_block_ids=[list(range(1, 20)), window])

    cut = cut_handle(handle, CHAIN, [*HISTORY[:70], 1], CONTEXT, BLOCK)

    assert (cut.outcome, cut.tokens) == (Outcome.SHORT, 0)


def test_a_group_that_kept_a_window_fits_the_whole_history_alone() -> None:
    """A sliding window's tail is of no use for a shorter prefix; for the whole one it is kept."""
    handle = params(remote_block_ids=[list(range(1, 20)), [118, 119]])

    whole = cut_handle(handle, CHAIN, [*HISTORY, 1], CONTEXT, BLOCK)
    shorter = cut_handle(handle, CHAIN, [*HISTORY[:290], 1], CONTEXT, BLOCK)

    assert whole.block_ids == [list(range(1, 20)), [118, 119]]
    assert (shorter.outcome, shorter.tokens) == (Outcome.SHORT, 0)


@pytest.mark.parametrize(
    ("changed", "chain", "context", "outcome"),
    [
        ({}, None, CONTEXT, Outcome.UNPROVED),
        ({"remote_blocks_expiry_time": None}, CHAIN, CONTEXT, Outcome.UNFENCED),
        ({"remote_block_ids": []}, CHAIN, CONTEXT, Outcome.SHORT),
        ({"remote_block_ids": "12"}, CHAIN, CONTEXT, Outcome.SHORT),
        ({"remote_block_ids": [["1"]]}, CHAIN, CONTEXT, Outcome.SHORT),
        ({"remote_num_tokens": None}, CHAIN, CONTEXT, Outcome.DIFFERENT),
        ({"remote_num_tokens": True}, CHAIN, CONTEXT, Outcome.DIFFERENT),
        ({}, CHAIN, context_of(adapter="other"), Outcome.DIFFERENT),
        ({}, CHAIN, context_of(cache_salt="other"), Outcome.DIFFERENT),
        ({}, DigestChain(300, CHAIN.digests, algorithm="other"), CONTEXT, Outcome.DIFFERENT),
    ],
)
def test_what_is_not_understood_is_not_read(
    changed: dict[str, Any], chain: DigestChain | None, context: bytes, outcome: Outcome
) -> None:
    """Without proof, fence, blocks, or with another context nothing is read."""
    cut = cut_handle(params(**changed), chain, HISTORY, context, BLOCK)

    assert (cut.outcome, cut.tokens) == (outcome, 0)


@given(
    history=st.lists(st.integers(0, 3), min_size=1, max_size=200),
    prompt=st.lists(st.integers(0, 3), min_size=1, max_size=200),
    shared=st.integers(0, 200),
)
def test_nothing_beyond_the_common_prefix_is_ever_read(
    history: list[int], prompt: list[int], shared: int
) -> None:
    """Whatever the tokens are, what is read is a common prefix, less a chunk at most."""
    prompt = history[:shared] + prompt
    handle = params(len(history))

    cut = cut_handle(handle, chain_of(history, CONTEXT), prompt, CONTEXT, BLOCK)

    common = next(
        (i for i, pair in enumerate(zip(history, prompt, strict=False)) if pair[0] != pair[1]),
        min(len(history), len(prompt)),
    )
    assert history[: cut.tokens] == prompt[: cut.tokens]
    assert common - cut.tokens < CHUNK_TOKENS
