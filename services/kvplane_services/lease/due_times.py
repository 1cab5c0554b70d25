"""When what is due, for very many things whose times mostly move to later ones."""

import heapq
import math
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class DueTimes(Generic[T]):
    """Things filed by the slot of time in which they are due. Each knows its own time.

    A thing that has moved to a later time since it was filed is filed anew when its old slot comes
    up, so that moving costs nothing. It takes one reference a thing.

    Args:
        width: Width of a slot in seconds. Things come up at their own time, not at their slot's.
        due: When a thing is due, in seconds on the monotonic clock; None if it is no longer
            waited for. It must not move to an earlier time after it was filed.

    """

    def __init__(self, *, width: float, due: Callable[[T], float | None]) -> None:
        self._width = width
        self._due = due
        self._slots: dict[int, list[T]] = {}
        self._order: list[int] = []

    def add(self, thing: T) -> None:
        """Files a thing that is not filed."""
        at = self._due(thing)
        if at is not None:
            self._file(thing, at)

    def pop_due(self, now: float) -> list[T]:
        """Takes out and returns the things whose time has come, earliest first."""
        due: list[tuple[float, T]] = []
        later: list[tuple[T, float]] = []
        last = self._slot_of(now)
        while self._order and self._order[0] <= last:
            for thing in self._slots.pop(heapq.heappop(self._order)):
                at = self._due(thing)
                if at is None:
                    continue
                if at > now:
                    later.append((thing, at))
                else:
                    due.append((at, thing))
        for thing, at in later:
            self._file(thing, at)
        due.sort(key=lambda pair: pair[0])
        return [thing for _, thing in due]

    def _file(self, thing: T, at: float) -> None:
        slot = self._slot_of(at)
        filed = self._slots.get(slot)
        if filed is None:
            self._slots[slot] = [thing]
            heapq.heappush(self._order, slot)
        else:
            filed.append(thing)

    def _slot_of(self, at: float) -> int:
        return math.floor(at / self._width)
