"""How processes look for garbage."""

import gc
from collections.abc import Iterator

import pytest

from kvplane_services.main.garbage import look_for_garbage_seldom


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def test_what_is_held_for_long_is_seldom_looked_through() -> None:
    """A million objects that come to stay cause no look through all of them."""
    look_for_garbage_seldom()
    looks: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            looks.append(info["generation"])

    gc.callbacks.append(note)
    try:
        held = [[number] for number in range(1_000_000)]
    finally:
        gc.callbacks.remove(note)
    assert len(held) == 1_000_000
    assert 0 < len(looks) < 200
    assert 2 not in looks


def test_cycles_are_found_all_the_same() -> None:
    """Garbage that holds itself is freed while other objects come."""
    look_for_garbage_seldom()
    freed: list[int] = []

    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            freed.append(1)

    Cycle()
    held = [[number] for number in range(100_000)]
    assert len(held) == 100_000
    assert freed
