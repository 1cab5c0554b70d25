"""Things that are due at times of their own, whatever stands before them."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from kvplane_services.lease.due_times import DueTimes


@dataclass(eq=False)
class Thing:
    """Due at a time, or at none."""

    at: float | None


# Quarters: many on the same slots, and on their borders.
times = st.integers(0, 40).map(lambda quarters: quarters / 4)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), times),
        st.tuples(st.just("move"), times),
        st.tuples(st.just("drop"), times),
        st.tuples(st.just("pass"), times),
    ),
    max_size=60,
)


@given(steps, st.sampled_from([0.25, 0.5, 3.0]))
def test_each_comes_up_at_its_own_time(steps: list[tuple[str, float]], width: float) -> None:
    """Nothing comes early, late, twice or out of order, however times move on."""
    due: DueTimes[Thing] = DueTimes(width=width, due=lambda thing: thing.at)
    waiting: list[Thing] = []
    now = 0.0
    for number, (step, time) in enumerate(steps):
        thing = waiting[number % len(waiting)] if waiting else None
        if step == "add":
            waiting.append(Thing(now + time))
            due.add(waiting[-1])
        elif step == "pass":
            now += time
            expected = sorted(
                (each for each in waiting if each.at is not None and each.at <= now),
                key=lambda each: each.at or 0.0,
            )
            found = due.pop_due(now)
            assert [each.at for each in found] == [each.at for each in expected]
            assert set(map(id, found)) == set(map(id, expected))
            waiting = [each for each in waiting if each not in expected]
        elif thing is not None and thing.at is not None:
            thing.at = thing.at + time if step == "move" else None
