from kvplane.client.names import SessionKey
from kvplane_connector.worth import Merits, Standing, Worth, middle_told


def session(name: str) -> SessionKey:
    return SessionKey("t", "m", "", name)


def test_standing_comes_before_value() -> None:
    """A turn under way outweighs any number of turns that were."""
    assert Worth(Standing.CLAIMED, 0.0) > Worth(Standing.KEPT, 99.0)
    assert Worth(Standing.SUPERSEDED, 99.0) < Worth(Standing.LAPSED, 0.0)


def test_conversations_that_come_back_are_worth_more() -> None:
    """Turns that ended here count, also those whose retentions are gone."""
    merits = Merits()
    merits.begin("a1", session("a"), 1000)
    second = merits.begin("a2", session("a"), 1000)
    other = merits.begin("b1", session("b"), 1000)

    assert second.value > other.value
    assert merits.is_superseded("a1", session("a"))
    assert not merits.is_superseded("a2", session("a"))


def test_what_nobody_uses_is_overtaken() -> None:
    """Each one that is given up raises the mark from which others start."""
    merits = Merits()
    merits.begin("old1", session("old"), 1000)
    old = merits.begin("old2", session("old"), 1000)
    for number in range(3):
        merits.given_up(merits.begin(f"n{number}", session(f"n{number}"), 1000))

    new = merits.begin("new", session("new"), 1000)

    assert new.value > old.value
    merits.used(old)
    assert old.value > new.value


def test_long_contexts_cost_more_per_token() -> None:
    """Of two that came back as often the longer one is worth more for each of its blocks."""
    merits = Merits()

    short, long = (merits.begin(f"{n}", session(f"{n}"), n) for n in (1_000, 100_000))

    assert long.value > short.value


def test_turns_without_a_session_are_each_the_first() -> None:
    """Implicit sessions have no name yet, so that they cannot supersede each other."""
    merits = Merits()
    first, second = (merits.begin(name, session(""), 1000) for name in ("a", "b"))

    assert first.turns == second.turns == 1
    assert not merits.is_superseded("a", session(""))


def test_conversations_remembered_are_bounded() -> None:
    """The longest unused is forgotten first."""
    merits = Merits()
    for number in range(5000):
        merits.begin(f"r{number}", session(f"s{number}"), 100)

    assert merits.begin("again", session("s4999"), 100).turns == 2
    assert merits.begin("again", session("s0"), 100).turns == 1


def test_what_the_plane_has_not_said_counts_as_the_middle_of_what_it_has() -> None:
    """A turn that just ended is not the first to go for want of a number; nor safe for it."""
    merits = Merits()
    made = [merits.begin(f"{n}", session(f"{n}"), 1000) for n in range(4)]
    assert middle_told(made) is None

    for merit, told in zip(made, (3.0, 1.0, 2.0), strict=False):
        merit.told = told

    assert middle_told(made) == 2.0
