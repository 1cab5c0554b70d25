"""What the pseudo-model promises."""

from kvplane_services.sim.model import Attention


def _reply(attention: Attention, count: int) -> list[int]:
    tokens: list[int] = []
    for _ in range(count):
        tokens.append(attention.next_token(may_end=False))
        attention.compute(tokens[-1:])
    return tokens


def _after(tokens: list[int]) -> tuple[Attention, list[int]]:
    attention = Attention.start(seed=1)
    return attention, attention.compute(tokens)


def test_reading_right_kv_equals_computing_it() -> None:
    """An engine that reads another's KV goes on as if it had computed it, cut anywhere."""
    tokens = list(range(100))
    computed, slots = _after(tokens)
    for cut in (1, 16, 50, 99):
        reader = Attention.start(seed=1)
        reader.read(slots[:cut])
        assert reader.compute(tokens[cut:]) == slots[cut:]
        assert reader == computed


def test_wrong_kv_gives_another_reply() -> None:
    """One foreign slot anywhere changes what follows."""
    _, slots = _after(list(range(100)))
    _, foreign = _after(list(range(1, 101)))
    right = Attention.start(seed=1)
    right.read(slots)
    expected = _reply(right, 20)
    for wrong in (0, 50, 99):
        reader = Attention.start(seed=1)
        reader.read([*slots[:wrong], foreign[wrong], *slots[wrong + 1 :]])
        assert _reply(reader, 20) != expected


def test_the_kv_of_a_token_depends_on_all_before_it() -> None:
    """Equal tokens behind different histories have different KV."""
    _, one = _after([1, 5, 5, 5])
    _, other = _after([2, 5, 5, 5])

    assert not set(one) & set(other)


def test_another_seed_is_another_model() -> None:
    """Engines with different seeds do not understand each other's KV."""
    one, other = Attention.start(seed=1), Attention.start(seed=2)

    assert one.compute([1, 2, 3]) != other.compute([1, 2, 3])


def test_replies_end_by_themselves() -> None:
    """Among many states some end the reply, and none where it may not end."""
    states = [Attention(value * 7919) for value in range(3000)]

    ended = sum(state.next_token(may_end=True) > 255 for state in states)
    assert 2 <= ended <= 30
    assert all(state.next_token(may_end=False) < 256 for state in states)
