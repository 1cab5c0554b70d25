from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from kvplane_services.lease.due_times import DueTimes


@dataclass(eq=False)
class Thing:
    at: float | None


def due_times() -> DueTimes[Thing]:
    return DueTimes(width=0.5, due=lambda thing: thing.at)


def test_things_come_up_at_their_own_time() -> None:
    """Not at the time of their slot, and the earliest first."""
    times = due_times()
    first, second = Thing(1.1), Thing(1.4)
    for thing in (second, first):
        times.add(thing)

    assert times.pop_due(1.09) == []
    assert times.pop_due(1.2) == [first]
    assert times.pop_due(1.4) == [second]
    assert times.pop_due(9.0) == []


def test_a_thing_that_moved_comes_up_later() -> None:
    """Once, at its new time."""
    times = due_times()
    thing = Thing(1.0)
    times.add(thing)
    thing.at = 7.3

    assert times.pop_due(7.2) == []
    assert times.pop_due(7.3) == [thing]
    assert times.pop_due(99.0) == []


def test_what_is_no_longer_waited_for_never_comes_up() -> None:
    """Whether it was so from the start, or came to be."""
    times = due_times()
    over, never = Thing(1.0), Thing(None)
    times.add(over)
    times.add(never)
    over.at = None

    assert times.pop_due(99.0) == []


def test_a_thing_that_is_late_already_comes_up_next() -> None:
    """What was put back without moving is due at once."""
    times = due_times()
    thing = Thing(1.0)
    times.add(thing)
    assert times.pop_due(5.0) == [thing]
    times.add(thing)

    assert times.pop_due(5.0) == [thing]


@given(
    st.lists(st.tuples(st.floats(0, 20), st.floats(0, 20)), max_size=30),
    st.lists(st.floats(0, 50), max_size=30),
)
def test_each_comes_up_once_and_in_time(
    moves: list[tuple[float, float]], looks: list[float]
) -> None:
    """Whatever moves where, and whenever one looks."""
    times = due_times()
    things = []
    for at, _ in moves:
        things.append(Thing(at))
        times.add(things[-1])
    for thing, (at, later) in zip(things, moves, strict=True):
        thing.at = at + later
    seen: list[Thing] = []
    for now in sorted(looks):
        seen.extend(times.pop_due(now))
        assert {thing for thing in things if thing.at is not None and thing.at <= now} == set(seen)

    assert len(seen) == len(set(seen))
