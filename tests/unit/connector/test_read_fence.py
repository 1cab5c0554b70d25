from types import SimpleNamespace
from typing import Any

import pytest

from kvplane_connector.read_fence import (
    BEGIN_MARGIN,
    END_MARGIN,
    LONGEST_HANDSHAKE,
    ReadFence,
    read_expiry,
    widest_offset,
)
from tests.support.clock import FakeClock

# The owner's clock runs this far ahead, and its blocks are kept for 30 s of it.
AHEAD = 5000.0


def _meta(clock: FakeClock, *, expiry: Any = ..., owner: str = "p", blocks: Any = ([7, 8],)) -> Any:
    if expiry is ...:
        expiry = clock.now() + AHEAD + 30
    return SimpleNamespace(
        local_physical_block_ids=blocks,
        remote=SimpleNamespace(engine_id=owner, blocks_expiry_time=expiry),
    )


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def fence(clock: FakeClock) -> ReadFence:
    return ReadFence(clock=clock, ahead={"p": AHEAD})


async def test_a_read_begins_until_the_margin_before_the_expiry(
    clock: FakeClock, fence: ReadFence
) -> None:
    """Reads begin while the owner keeps the blocks 5 s longer, by the owner's clock."""
    meta = _meta(clock)

    assert fence.may_begin(meta)
    await clock.advance(30 - BEGIN_MARGIN - 0.01)
    assert fence.may_begin(meta)
    await clock.advance(0.02)
    assert not fence.may_begin(meta)


async def test_a_read_counts_only_if_it_ended_before_the_expiry(
    clock: FakeClock, fence: ReadFence
) -> None:
    """A read may end later than it could begin, but not once the owner may have given all away."""
    meta = _meta(clock)

    await clock.advance(30 - BEGIN_MARGIN + 1)
    assert fence.ended_in_time(meta)
    await clock.advance(BEGIN_MARGIN - END_MARGIN)
    assert not fence.ended_in_time(meta)


@pytest.mark.parametrize("expiry", [None, "soon", True, float("nan"), float("inf"), 10**400])
def test_without_an_expiry_nothing_is_read(clock: FakeClock, fence: ReadFence, expiry: Any) -> None:
    """A handle that does not say until when its blocks are kept promises nothing."""
    meta = _meta(clock, expiry=expiry)

    assert read_expiry(expiry) is None
    assert not fence.may_begin(meta)
    assert not fence.ended_in_time(meta)


def test_an_owner_whose_clock_is_unknown_is_not_read(clock: FakeClock, fence: ReadFence) -> None:
    """Without a handshake an expiry says nothing in this engine's time."""
    assert not fence.may_begin(_meta(clock, owner="stranger"))


@pytest.mark.parametrize("blocks", [None, (), ([],), ([], [])])
def test_telling_the_owner_needs_no_fence(clock: FakeClock, fence: ReadFence, blocks: Any) -> None:
    """A request that has all it needs reads nothing, and its word to the owner is never late."""
    meta = _meta(clock, expiry=None, blocks=blocks)

    assert fence.may_begin(meta)
    assert fence.ended_in_time(meta)


def test_the_clock_of_an_owner_is_taken_for_as_far_ahead_as_it_can_be() -> None:
    """Half of the handshake's time is added: the owner can have told its time at its beginning."""
    asked_at, told, answered_at = 100.0, 5100.0, 104.0
    estimate = told - (asked_at + answered_at) / 2

    assert widest_offset(estimate, took=answered_at - asked_at) == told - asked_at


def test_a_handshake_that_stood_still_tells_no_time() -> None:
    """One that took long is refused, so that the next read asks the owner again."""
    with pytest.raises(ValueError, match="too little of the other engine's clock"):
        widest_offset(0.0, took=LONGEST_HANDSHAKE + 1)
