"""Who is watched for coming back, and what is counted of it."""

from hypothesis import given
from hypothesis import strategies as st

from kvplane_services.lease.comebacks import Comebacks
from kvplane_services.lease.return_kinds import Hint, Kind, first_kind
from kvplane_services.lease.return_rates import AGES, LAST_AGE, ReturnRates, age_of

Event = tuple[str, Kind, int]


class Noted(ReturnRates):
    """Rates that remember what they were told."""

    def __init__(self) -> None:
        super().__init__()
        self.back: list[tuple[Kind, int]] = []
        self.away: list[tuple[Kind, int]] = []

    def outlast(self, kind: Kind, age: int) -> None:
        self.away.append((kind, age))

    def come_back(self, kind: Kind, age: int) -> None:
        self.back.append((kind, age))


def test_a_return_is_counted_once_when_the_turn_begins() -> None:
    """With the time that the conversation was away; the turn's end is no second return."""
    noted = Noted()
    comebacks = Comebacks[str](rates=noted, limit=10)
    first = comebacks.end_turn("a", 2000, 0.0)
    comebacks.begin_turn("a", 12.0)
    comebacks.begin_turn("a", 14.0)

    second = comebacks.end_turn("a", 2500, 40.0)

    assert noted.back == [(first_kind(2000), age_of(12.0))]
    assert noted.away == [(first, age) for age in range(age_of(12.0))]
    assert second == first.next(pause=12.0, growth=500)


def test_a_turn_whose_begin_was_not_seen_counts_from_its_end() -> None:
    """As of a conversation whose lease had ended."""
    noted = Noted()
    comebacks = Comebacks[str](rates=noted, limit=10)
    comebacks.end_turn("a", 2000, 0.0)

    assert comebacks.end_turn("a", 2500, 100.0).turn == 2
    assert [age for _, age in noted.back] == [age_of(100.0)]


def test_who_stays_away_is_counted_age_by_age_and_then_forgotten() -> None:
    """Though nobody speaks of the conversation any more."""
    noted = Noted()
    comebacks = Comebacks[str](rates=noted, limit=10)
    comebacks.end_turn("a", 2000, 0.0)
    comebacks.sweep(45.0)
    assert [age for _, age in noted.away] == list(range(age_of(45.0)))

    comebacks.sweep(1e5)

    assert [age for _, age in noted.away] == list(range(LAST_AGE))
    assert (len(comebacks), noted.back) == (0, [])


def test_a_hint_changes_what_is_learnt_from_then_on() -> None:
    """Until the next turn ends."""
    noted = Noted()
    comebacks = Comebacks[str](rates=noted, limit=10)
    comebacks.end_turn("a", 2000, 0.0)
    comebacks.hint("a", Hint.STAY)
    comebacks.begin_turn("a", 3.0)

    assert [kind.hint for kind, _ in noted.back] == [Hint.STAY]
    assert comebacks.end_turn("a", 2100, 4.0).hint is Hint.NONE


def test_no_more_are_watched_than_allowed() -> None:
    """Those beyond it have a kind all the same, and room comes back."""
    comebacks = Comebacks[int](rates=Noted(), limit=2)
    kinds = [comebacks.end_turn(number, 2000, 0.0) for number in range(5)]
    assert (len(comebacks), set(kinds)) == (2, {first_kind(2000)})

    comebacks.sweep(1e5)

    comebacks.end_turn(7, 2000, 1e5)
    assert len(comebacks) == 1


def test_a_turn_that_leaves_nothing_is_forgotten() -> None:
    """It began, and nothing was heard of it again."""
    comebacks = Comebacks[str](rates=Noted(), limit=2)
    comebacks.end_turn("a", 2000, 0.0)
    comebacks.begin_turn("a", 1.0)
    comebacks.sweep(10.0)
    assert len(comebacks) == 1

    comebacks.sweep(1e5)

    assert len(comebacks) == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"), st.sampled_from(["begin", "end", "sweep"]), st.floats(0, 900)
        ),
        max_size=50,
    )
)
def test_each_age_of_each_pause_is_counted_once(steps: list[tuple[str, str, float]]) -> None:
    """However turns and sweeps fall: as many begin an age as outlast the one before, or fewer."""
    noted = Noted()
    comebacks = Comebacks[str](rates=noted, limit=2)
    now, ends = 0.0, 0
    for key, what, wait in steps:
        now += wait
        if what == "begin":
            comebacks.begin_turn(key, now)
        elif what == "end":
            comebacks.end_turn(key, 2000, now)
            ends += 1
        else:
            comebacks.sweep(now)
    comebacks.sweep(now + AGES[-1] + 1)

    outlasted = [sum(1 for _, each in noted.away if each == age) for age in range(LAST_AGE)]
    assert outlasted == sorted(outlasted, reverse=True)
    assert max([0, *outlasted]) + sum(1 for _, age in noted.back if age == 0) <= ends
