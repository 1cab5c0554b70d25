import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplane.digest import (
    CHUNK_TOKENS,
    DigestChain,
    Medium,
    chain_of,
    common_prefix,
    context_of,
)

CONTEXT = context_of()
TOKENS = list(range(10 * CHUNK_TOKENS + 7))
# Begins in the fourth chunk and ends in the fifth.
IMAGE = Medium(3 * CHUNK_TOKENS + 5, CHUNK_TOKENS, "cat")


def test_a_prompt_that_goes_on_shares_all() -> None:
    """The incomplete chunk at the end is proved too."""
    chain = chain_of(TOKENS, CONTEXT)

    assert common_prefix(chain, TOKENS, CONTEXT) == len(TOKENS)
    assert common_prefix(chain, [*TOKENS, 1, 2, 3], CONTEXT) == len(TOKENS)


@given(
    kept=st.integers(0, len(TOKENS)), more=st.integers(0, 3 * CHUNK_TOKENS), chunk=st.integers(1, 9)
)
def test_wherever_two_prompts_part_the_whole_chunks_before_are_shared(
    kept: int, more: int, chunk: int
) -> None:
    """Neither a token of another kind nor a prompt's end hides what stands before it."""
    history = TOKENS[: chunk * CHUNK_TOKENS + kept % CHUNK_TOKENS]
    prompt = [*history[:kept], *[999_999] * more]

    shared = common_prefix(chain_of(history, CONTEXT), prompt, CONTEXT)

    kept = min(kept, len(history))
    assert shared == (kept if kept == len(history) else kept // CHUNK_TOKENS * CHUNK_TOKENS)


def test_another_context_shares_nothing() -> None:
    """An adapter or a salt shapes the KV of every token."""
    chain = chain_of(TOKENS, CONTEXT)

    for other in (context_of(adapter="a"), context_of(cache_salt="a")):
        assert common_prefix(chain, TOKENS, other) == 0


@pytest.mark.parametrize(
    "other",
    [
        (),
        (dataclasses.replace(IMAGE, identifier="dog"),),
        (dataclasses.replace(IMAGE, offset=IMAGE.offset + 1),),
        (dataclasses.replace(IMAGE, length=IMAGE.length - 1),),
        (IMAGE, dataclasses.replace(IMAGE, offset=IMAGE.offset + 1, length=1)),
    ],
)
def test_an_image_of_other_content_ends_what_is_shared(other: tuple[Medium, ...]) -> None:
    """Its tokens are the same, so only the content tells; what stands before it is shared."""
    chain = chain_of(TOKENS, CONTEXT, (IMAGE,))

    assert common_prefix(chain, TOKENS, CONTEXT, (IMAGE,)) == len(TOKENS)
    assert common_prefix(chain, TOKENS, CONTEXT, other) == 3 * CHUNK_TOKENS


def test_an_image_that_a_turn_adds_leaves_the_history_shared() -> None:
    """Media behind the tokens that blocks hold say nothing of these."""
    chain = chain_of(TOKENS, CONTEXT, (IMAGE,))
    added = Medium(len(TOKENS), 50, "dog")

    prompt = [*TOKENS, *[7] * 60]
    assert common_prefix(chain, prompt, CONTEXT, (added, IMAGE)) == len(TOKENS)
    assert chain == chain_of(TOKENS, CONTEXT, (IMAGE, added))


def test_no_two_histories_have_the_same_digests() -> None:
    """Tokens that spell an image's digest are not taken for the image."""
    spelled = IMAGE.digest()
    ids = [int.from_bytes(spelled[i : i + 4], "little") for i in range(0, len(spelled), 4)]
    chunk = IMAGE.offset // CHUNK_TOKENS * CHUNK_TOKENS
    histories = (
        chain_of(TOKENS, CONTEXT),
        chain_of(TOKENS, CONTEXT, (IMAGE,)),
        chain_of([*TOKENS[:chunk], *ids, *TOKENS[chunk:]], CONTEXT),
        chain_of([*TOKENS[:chunk], *ids, *TOKENS[chunk + len(ids) :]], CONTEXT),
    )

    for one, other in itertools.combinations(histories, 2):
        assert one.digests[-1] != other.digests[-1]


@pytest.mark.parametrize(
    "changed",
    [
        {"algorithm": "blake2b-128/1"},
        {"chunk_tokens": 0},
        {"chunk_tokens": -1},
        {"tokens": len(TOKENS) + CHUNK_TOKENS},
        {"tokens": 0},
        {"tokens": -5, "digests": ()},
        {"digests": ()},
    ],
)
def test_a_chain_that_is_not_understood_proves_nothing(changed: dict[str, object]) -> None:
    """Another construction, or numbers that do not fit together."""
    chain = dataclasses.replace(chain_of(TOKENS, CONTEXT), **changed)  # type: ignore[arg-type] # wrong on purpose

    assert common_prefix(chain, TOKENS, CONTEXT) == 0


def test_an_empty_history_proves_nothing() -> None:
    """And an empty prompt shares nothing."""
    empty = chain_of([], CONTEXT)

    assert empty == DigestChain(0, ())
    assert common_prefix(empty, TOKENS, CONTEXT) == 0
    assert common_prefix(chain_of(TOKENS, CONTEXT), [], CONTEXT) == 0
