"""Memory pressure in a step loop that takes blocks as vLLM does."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplane.client.retention import EndReason, Renew
from tests.support.step_loop import BLOCK, StepLoop


def blocks(count: int) -> int:
    """Tokens of a prompt that leaves room in the last block for the first of its reply."""
    return count * BLOCK - 4


def full_loop(
    *, has_words: bool = True, asks_before_preempting: bool = True, token_budget: int = 10_000
) -> StepLoop:
    """A pool of 100 blocks, all of them retained by ten turns."""
    loop = StepLoop(
        100,
        has_words=has_words,
        asks_before_preempting=asks_before_preempting,
        token_budget=token_budget,
    )
    loop.retain(*(f"t{number}" for number in range(10)), tokens=blocks(10))
    assert loop.ledger.retained_blocks == loop.blocks.total
    return loop


def test_a_request_of_half_the_cache_starts_in_the_next_step() -> None:
    """The step that finds no blocks for it frees them, the oldest first, and no more."""
    loop = full_loop()

    request = loop.add("new", blocks(50), reply=10)
    loop.step()
    assert request in loop.waiting
    loop.step()

    assert request in loop.running
    assert request.steps_waited == 1
    assert loop.ended == {f"t{number}": EndReason.RECLAIMED for number in range(5)}


def test_nothing_is_freed_while_there_is_room() -> None:
    """A request that fits waits for nobody, and nobody goes for it."""
    loop = StepLoop(100)
    loop.retain("a", "b", tokens=blocks(10))

    request = loop.add("new", blocks(70))
    loop.step()
    loop.step()

    assert request.steps_waited == 0
    assert loop.ended == {}


def test_each_request_of_a_burst_waits_one_step() -> None:
    """Small requests that come together share what was freed beyond the need of the first."""
    loop = full_loop()
    requests = [loop.add(f"n{number}", 4, reply=3) for number in range(8)]

    loop.finish_all()

    assert max(one.steps_waited for one in requests) == 1
    assert len(loop.ended) == 1


def test_what_is_on_its_way_is_not_freed_again() -> None:
    """While the workers have an order, a second look gives no more up."""
    loop = full_loop()
    loop.add("new", blocks(30))
    loop.loses_releases = True
    for _ in range(5):
        loop.step()

    assert len(loop.ledger.candidates(loop.clock.now(), in_use=()).leaving_at_once) == 3


def test_releases_that_never_come_back_do_not_block_others() -> None:
    """What the workers do not confirm for long is not waited for."""
    loop = full_loop()
    request = loop.add("new", blocks(30))
    loop.loses_releases = True
    loop.step()
    loop.loses_releases = False
    for _ in range(80):
        loop.step()

    assert request not in loop.waiting


def test_a_request_that_cannot_be_helped_costs_nobody_anything() -> None:
    """Nothing goes while even all of it would not be enough; it does as soon as it would."""
    loop = StepLoop(100)
    loop.retain("a", "b", tokens=blocks(10))
    loop.add("long", blocks(60), reply=40)
    loop.step()
    request = loop.add("large", blocks(90))
    for _ in range(20):
        loop.step()
    assert loop.ended == {}

    loop.finish_all()

    assert not loop.waiting
    assert request.steps_waited <= 41
    assert set(loop.ended.values()) == {EndReason.RECLAIMED}


@pytest.mark.parametrize("asks", [True, False], ids=["asks", "preempts"])
def test_running_requests_are_not_stopped_for_what_is_only_retained(*, asks: bool) -> None:
    """Replies that grow get their blocks before they need them, whether vLLM asks or not."""
    loop = full_loop(asks_before_preempting=asks)
    first = [loop.add(f"n{number}", blocks(4), reply=200) for number in range(4)]

    loop.finish_all()

    assert loop.preempted == []
    assert all(one.reply <= 0 for one in first)
    # A block is freed for each that grows, and seldom: ten turns are not all given up.
    assert 5 <= len(loop.ended) <= 9


def test_a_prompt_computed_in_parts_finds_its_blocks() -> None:
    """What a prompt still needs is freed before its next part is computed."""
    loop = full_loop(token_budget=blocks(5))
    loop.add("new", blocks(50))

    loop.finish_all()

    assert loop.preempted == []


def test_the_blocks_of_the_requests_own_conversation_stay() -> None:
    """The next turn of a retained conversation shares its blocks: others go for the rest."""
    loop = full_loop()
    request = loop.add("next", blocks(30), session="session of t0")

    loop.finish_all()

    assert request.steps_waited == 1
    assert "t0" in loop.retained
    assert set(loop.ended) == {"t1", "t2", "t3"}


def test_an_older_turn_of_a_conversation_goes_first() -> None:
    """What its conversation went on without is given up before anything else."""
    loop = StepLoop(100)
    loop.retain("a", tokens=blocks(10))
    loop.pool.cached.clear()
    loop.retain("b", tokens=blocks(10))
    loop.add("b2", blocks(12), session="session of b")
    loop.pool.cached.clear()
    loop.finish_all()

    loop.add("new", blocks(70))
    loop.finish_all()

    assert loop.ended == {"b": EndReason.RECLAIMED}


async def test_what_the_plane_renews_outlives_what_it_lets_lapse() -> None:
    """Renewals tell what is to be kept."""
    loop = full_loop()
    kept = {"t0", "t3"}
    await loop.clock.advance(20)
    loop.ledger.apply([Renew(name, "leases/l", 1, 30.0) for name in kept], sent_at=loop.clock.now())

    loop.add("new", blocks(80))
    loop.finish_all()

    assert set(loop.retained) == kept


def test_what_the_plane_says_of_worth_decides_among_what_it_keeps() -> None:
    """The least worth per block go first, whatever the engine itself would think."""
    loop = full_loop()
    worth = {f"t{number}": float(10 - number) for number in range(10)}
    loop.ledger.apply(
        [Renew(name, "leases/l", 1, 30.0, worth=value) for name, value in worth.items()],
        sent_at=loop.clock.now(),
    )

    loop.add("new", blocks(50))
    loop.finish_all()

    assert set(loop.ended) == {f"t{number}" for number in range(5, 10)}


async def test_without_words_memory_comes_back_at_the_promised_expiry() -> None:
    """A request then waits for the expiry in a handle; renewals do not move what was asked for."""
    loop = full_loop(has_words=False)
    request = loop.add("new", blocks(50))
    loop.step()
    names = [f"t{number}" for number in range(10)]
    await loop.clock.advance(29)
    loop.ledger.apply(
        [Renew(name, "leases/l", 1, 30.0) for name in names], sent_at=loop.clock.now()
    )
    loop.step()
    assert request in loop.waiting

    await loop.clock.advance(1)
    loop.step()
    loop.step()

    assert request not in loop.waiting
    assert loop.ended == {f"t{number}": EndReason.RECLAIMED for number in range(5)}


def test_more_is_freed_where_vllm_refuses_what_seems_enough() -> None:
    """vLLM may reserve blocks for reasons of its own: a request does not wait for a lease's end."""
    loop = StepLoop(100)
    loop.retain(*(f"t{number}" for number in range(8)), tokens=blocks(10))
    loop.refuses = lambda _: loop.blocks.free < 30
    loop.add("new", blocks(20))

    for _ in range(100):
        loop.step()

    assert not loop.waiting
    assert list(loop.ended) == ["t0"]


def test_nothing_is_freed_for_a_request_that_lacks_something_else() -> None:
    """Budgets of vLLM's other than blocks may hold it up with many blocks free."""
    loop = StepLoop(100)
    loop.retain(*(f"t{number}" for number in range(6)), tokens=blocks(10))
    loop.refuses = lambda _: True
    loop.add("new", blocks(10))

    for _ in range(200):
        loop.step()

    assert loop.ended == {}


def test_what_is_freed_for_reasons_that_are_not_known_has_an_end() -> None:
    """However long a request is refused, most of what is retained stays."""
    loop = full_loop()
    loop.refuses = lambda _: True
    loop.add("new", blocks(20))

    for _ in range(200):
        loop.step()

    assert 2 <= len(loop.ended) <= 4


SCRIPT = st.lists(
    st.tuples(
        st.integers(0, 5),  # session; 0 for none
        st.integers(1, 60),  # prompt in blocks
        st.integers(1, 40),  # reply in tokens
        st.integers(0, 6),  # steps until the next one
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=60)
@given(script=SCRIPT, asks=st.booleans())
def test_nobody_waits_for_a_lease(*, script: list[tuple[int, int, int, int]], asks: bool) -> None:
    """Whatever comes, all finish though no time passes; and the account is the pool's, always."""
    loop = StepLoop(100, asks_before_preempting=asks)
    for number, (session, size, reply, pause) in enumerate(script):
        loop.add(
            f"r{number}",
            blocks(size),
            session=f"s{session}" if session else "",
            reply=reply,
        )
        for _ in range(pause):
            loop.step()
            assert loop.agrees()
    for _ in range(4000):
        if not loop.waiting and not loop.running:
            break
        loop.step()
        assert loop.agrees()

    assert not loop.waiting
    assert not loop.running
    assert set(loop.ended.values()) <= {EndReason.RECLAIMED}
