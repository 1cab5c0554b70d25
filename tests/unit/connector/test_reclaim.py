from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kvplane_connector.reclaim import Candidate, Choice, choose
from kvplane_connector.worth import Standing, Worth


def candidate(
    name: str, blocks: range | set[int], value: float = 0.0, standing: Standing = Standing.KEPT
) -> Candidate:
    return Candidate(name, frozenset(blocks), Worth(standing, value))


def chosen(
    *candidates: Candidate,
    needed: int,
    headroom: int = 0,
    leaving: tuple[Candidate, ...] = (),
    others: Counter[int] | None = None,
) -> Choice:
    holders = holders_of((*candidates, *leaving), others)
    return choose(
        candidates,
        leaving=leaving,
        holders=holders.__getitem__,
        needed=needed,
        headroom=headroom,
    )


def holders_of(
    candidates: tuple[Candidate, ...], others: Counter[int] | None = None
) -> Counter[int]:
    holders = Counter(others or {})
    for one in candidates:
        holders.update(one.blocks)
    return holders


def test_the_least_worth_go_first() -> None:
    """Standing comes before value, and value decides among equals."""
    choice = chosen(
        candidate("claimed", range(10), 0.0, Standing.CLAIMED),
        candidate("dear", range(10, 20), 9.0),
        candidate("cheap", range(20, 30), 1.0),
        candidate("superseded", range(30, 40), 99.0, Standing.SUPERSEDED),
        candidate("lapsed", range(40, 50), 50.0, Standing.LAPSED),
        needed=30,
    )

    assert choice == Choice(("superseded", "lapsed", "cheap"), 30, enough=True)


def test_shared_blocks_come_back_with_the_last_that_holds_them() -> None:
    """What a request or another retention holds as well is not freed by one of them."""
    first, second = candidate("first", range(10), 1.0), candidate("second", range(5, 15), 2.0)

    assert chosen(first, second, needed=5) == Choice(("first",), 5, enough=True)
    assert chosen(first, second, needed=15) == Choice(("first", "second"), 15, enough=True)
    running = Counter(dict.fromkeys(range(12), 1))
    assert chosen(first, second, needed=3, others=running) == Choice(("second",), 3, enough=True)


def test_what_frees_nothing_is_spared() -> None:
    """A retention whose blocks a request holds is worth keeping however little it is worth."""
    shared = candidate("shared", range(10), 0.0, Standing.SUPERSEDED)
    running = Counter(dict.fromkeys(range(10), 1))

    choice = chosen(shared, candidate("own", range(10, 20)), needed=5, others=running)

    assert choice.names == ("own",)


def test_small_ones_are_spared_if_a_large_one_has_to_go() -> None:
    """What was taken before something that is enough by itself stays, the most worth first."""
    small, other = candidate("small", range(4), 1.0), candidate("other", range(4, 8), 2.0)
    large = candidate("large", range(8, 108), 3.0)

    assert chosen(small, other, large, needed=100).names == ("large",)
    assert chosen(small, other, large, needed=102).names == ("small", "large")


def test_headroom_takes_what_fits_and_nothing_larger() -> None:
    """A little more than needed is freed by small ones; a large one is not ended for it."""
    needed, small = candidate("needed", range(10), 1.0), candidate("small", range(10, 14), 2.0)
    large = candidate("large", range(20, 120), 3.0)

    assert chosen(needed, small, large, needed=10).names == ("needed",)
    assert chosen(needed, small, large, needed=10, headroom=6).names == ("needed", "small")
    assert chosen(needed, large, needed=10, headroom=6).names == ("needed",)


def test_what_is_about_to_go_counts() -> None:
    """Nothing more is given up while enough is on its way."""
    gone, other = candidate("gone", range(10)), candidate("other", range(10, 20))

    assert chosen(other, leaving=(gone,), needed=10) == Choice((), 10, enough=True)
    assert chosen(other, leaving=(gone,), needed=11) == Choice(("other",), 20, enough=True)


def test_too_little_is_said() -> None:
    """If all are not enough, they are named, and that it is not enough."""
    choice = chosen(candidate("a", range(5)), candidate("b", range(5, 8)), needed=9)

    assert choice == Choice(("a", "b"), 8, enough=False)


CANDIDATES = st.lists(
    st.builds(
        lambda blocks, value, standing: (blocks, value, standing),
        st.frozensets(st.integers(0, 40), max_size=15),
        st.integers(0, 5),
        st.sampled_from(Standing),
    ),
    max_size=12,
).map(
    lambda found: tuple(
        Candidate(f"r{n}", blocks, Worth(standing, value))
        for n, (blocks, value, standing) in enumerate(found)
    )
)


@given(
    candidates=CANDIDATES,
    running=st.frozensets(st.integers(0, 40), max_size=20),
    needed=st.integers(1, 45),
    headroom=st.integers(0, 10),
)
def test_enough_is_freed_if_it_can_be_and_nobody_is_given_up_for_nothing(
    candidates: tuple[Candidate, ...], running: frozenset[int], needed: int, headroom: int
) -> None:
    """Each one that goes is needed, or fits into the headroom; and none could stay instead."""
    others = Counter(dict.fromkeys(running, 1))
    holders = holders_of(candidates, others)

    def freed(names: set[str]) -> int:
        left = holders.copy()
        for one in candidates:
            if one.name in names:
                left.subtract(one.blocks)
        return sum(left[block] == 0 for block in holders)

    choice = choose(candidates, holders=holders.__getitem__, needed=needed, headroom=headroom)

    names = set(choice.names)
    assert len(names) == len(choice.names)
    assert choice.freed == freed(names)
    everything = freed({one.name for one in candidates})
    assert choice.enough == (everything >= needed)
    if not choice.enough:
        assert choice.freed == everything
        return
    assert choice.freed >= needed
    for name in names:
        without = freed(names - {name})
        assert without < choice.freed
        assert without < needed or choice.freed <= needed + headroom


@given(
    sizes=st.lists(st.tuples(st.integers(1, 8), st.integers(0, 5)), min_size=1, max_size=12),
    needed=st.integers(1, 40),
)
def test_cheapest_first(sizes: list[tuple[int, int]], needed: int) -> None:
    """Without shared blocks, who stays and is worth less than one that goes would not do instead.

    It was spared because those that go, all needed, free enough without it.
    """
    start, candidates = 0, []
    for number, (size, value) in enumerate(sizes):
        candidates.append(candidate(f"r{number}", range(start, start + size), value))
        start += size

    choice = chosen(*candidates, needed=needed)

    if not choice.enough:
        return
    by_name = {one.name: one for one in candidates}
    dearest = max((by_name[name] for name in choice.names), key=lambda one: one.worth)
    below = [one for one in candidates if one.worth < dearest.worth]
    # All that are worth less than the dearest one together are not enough: it had to be taken.
    assert sum(len(one.blocks) for one in below) < needed
