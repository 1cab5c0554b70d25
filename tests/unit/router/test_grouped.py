"""Groups of values."""

from hypothesis import given
from hypothesis import strategies as st

from kvplane_services.router.grouped import Grouped

operations = st.lists(
    st.tuples(st.booleans(), st.integers(0, 2), st.sampled_from("abc"), st.integers(0, 9))
)


@given(operations)
def test_groups_are_as_dicts_of_dicts(steps: list[tuple[bool, int, str, int]]) -> None:
    """Whatever is put and dropped, members are those of a dict, in its order."""
    grouped: Grouped[int, int] = Grouped()
    plain: dict[int, dict[str, int]] = {}
    for puts, group, name, value in steps:
        if puts:
            grouped.put(group, name, value)
            plain.setdefault(group, {})[name] = value
        else:
            grouped.drop(group, name)
            plain.get(group, {}).pop(name, None)
        for each in range(3):
            assert grouped.of(each) == tuple(plain.get(each, {}).values())
    assert set(grouped) == {group for group, members in plain.items() if members}
    assert len(grouped) == len(set(grouped))
