from hypothesis import given
from hypothesis import strategies as st

from kvplane_services.deadlines import Deadlines


def test_each_is_due_at_its_own_time_whatever_stands_before_it() -> None:
    """A late deadline that was set first does not hold up an early one."""
    deadlines = Deadlines()
    deadlines.set("late", 100.0)
    deadlines.set("early", 10.0)

    assert deadlines.pop_due(10.0) == ["early"]
    assert deadlines.pop_due(99.9) == []
    assert deadlines.pop_due(100.0) == ["late"]


def test_a_moved_deadline_counts() -> None:
    """Only the time set last counts, be it later or earlier."""
    deadlines = Deadlines()
    deadlines.set("later", 10.0)
    deadlines.set("later", 20.0)
    deadlines.set("earlier", 30.0)
    deadlines.set("earlier", 5.0)

    assert deadlines.pop_due(10.0) == ["earlier"]
    assert deadlines.pop_due(30.0) == ["later"]
    assert deadlines.pop_due(1000.0) == []


def test_renewals_do_not_grow_the_heap() -> None:
    """Moving a deadline back again and again takes no memory."""
    deadlines = Deadlines()
    for step in range(1000):
        deadlines.set("a", float(step))

    assert len(deadlines._heap) == 1


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["set", "drop", "pop"]),
            st.sampled_from("abc"),
            st.integers(0, 20),
        )
    )
)
def test_it_behaves_as_a_plain_dictionary_would(steps: list[tuple[str, str, int]]) -> None:
    """Whatever is set, dropped and popped, what is due is what a full scan would find."""
    deadlines, model = Deadlines(), dict[str, float]()
    for action, key, time in steps:
        if action == "set":
            deadlines.set(key, float(time))
            model[key] = float(time)
        elif action == "drop":
            deadlines.drop(key)
            model.pop(key, None)
        else:
            due = sorted((at, each) for each, at in model.items() if at <= time)
            for _, each in due:
                del model[each]
            assert [each for _, each in due] == deadlines.pop_due(float(time))
        upcoming = deadlines.next()
        assert (upcoming is None) == (not model)
        assert upcoming is None or upcoming <= min(model.values())
        assert len(model) == len(deadlines)
