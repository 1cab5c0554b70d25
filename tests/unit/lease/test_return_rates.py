"""What is foretold of returns."""

from hypothesis import given
from hypothesis import strategies as st

from kvplane_services.lease.return_kinds import Hint, Kind, first_kind
from kvplane_services.lease.return_rates import AGES, LAST_AGE, ReturnRates, age_of, best_stretches

FIRST = first_kind(2000)


def counted(kind: Kind, age: int, *, back: int, away: int) -> ReturnRates:
    rates = ReturnRates()
    for _ in range(back):
        for earlier in range(age):
            rates.outlast(kind, earlier)
        rates.come_back(kind, age)
    for _ in range(away):
        for each in range(LAST_AGE):
            rates.outlast(kind, each)
    rates.refresh(0.0)
    return rates


def test_a_time_is_of_the_age_that_it_lies_in() -> None:
    """An age includes its beginning; the last one has no end."""
    assert [age_of(idle) for idle in (0.0, 1.9, 2.0, 1e9)] == [0, 0, 1, LAST_AGE]


def test_without_data_the_lately_used_are_worth_more() -> None:
    """The prior falls with idle time."""
    rates = ReturnRates()
    worths = [rates.per_second(FIRST, begin) for begin in AGES[:-1]]

    assert worths == sorted(worths, reverse=True)


def test_hints_rank_before_anything_is_learnt() -> None:
    """Who says that it stays is worth the most, who says that it is done the least."""
    rates = ReturnRates()
    stays, none, final = (
        rates.per_second(FIRST.hinted(hint), 30.0) for hint in (Hint.STAY, Hint.NONE, Hint.FINAL)
    )

    assert stays > none > 10 * final > 0


def test_what_comes_back_after_a_while_outranks_what_is_gone() -> None:
    """If all return after a minute, one that has been away for 40 s is worth the most."""
    rates = counted(FIRST, age_of(60.0), back=200, away=0)

    assert rates.per_second(FIRST, 45.0) > rates.per_second(FIRST, 5.0)
    assert rates.per_second(FIRST, 45.0) > 10 * rates.per_second(FIRST, 100.0)


def test_a_kind_that_was_seldom_seen_is_judged_like_its_kin() -> None:
    """One return of a kind moves it less than two hundred of its wider group."""
    rates = counted(FIRST, age_of(10.0), back=200, away=0)
    seldom = first_kind(50_000)
    before = ReturnRates().chances(seldom)[age_of(10.0)]
    rates.come_back(seldom, age_of(200.0))
    rates.refresh(0.0)

    assert rates.chances(seldom)[age_of(10.0)] > 3 * before


def test_what_was_counted_loses_weight() -> None:
    """After many half lives the prior is back."""
    rates = counted(FIRST, age_of(10.0), back=200, away=0)
    rates.refresh(1e7)

    for chance, prior in zip(rates.chances(FIRST), ReturnRates().chances(FIRST), strict=True):
        assert abs(chance - prior) < 1e-6


@given(st.lists(st.floats(0, 0.999), min_size=len(AGES), max_size=len(AGES)))
def test_a_stretch_promises_no_more_than_its_best_age(chances: list[float]) -> None:
    """Waiting through an age never makes a promise larger than the best age to come has alone."""
    worths = best_stretches(chances)
    alone = [
        best_stretches([0.0] * age + [chance] + [0.0] * (LAST_AGE - age))[age]
        for age, chance in enumerate(chances)
    ]

    for age, worth in enumerate(worths):
        assert alone[age] - 1e-12 <= worth <= max(alone[age:]) + 1e-12


@given(
    st.lists(
        st.tuples(st.integers(0, LAST_AGE), st.booleans(), st.sampled_from(list(Hint))), max_size=60
    )
)
def test_chances_stay_chances(events: list[tuple[int, bool, Hint]]) -> None:
    """Whatever is counted, in whatever order."""
    rates = ReturnRates()
    for now, (age, back, hint) in enumerate(events):
        (rates.come_back if back else rates.outlast)(FIRST.hinted(hint), age)
        rates.refresh(float(now))

    for hint in Hint:
        assert all(0 < chance < 1 for chance in rates.chances(FIRST.hinted(hint)))
        assert rates.per_second(FIRST.hinted(hint), 1.0) > 0
