"""Things by the second at which they were used, or are due, in few bytes each."""

import heapq
from typing import Generic, TypeVar

T = TypeVar("T")


class Seconds(Generic[T]):
    """Things by whole second; each takes one place in a list.

    Nothing is taken out before its turn comes: whoever takes it out looks whether it is still
    meant, and puts it in again if its time has changed.
    """

    def __init__(self) -> None:
        self._lists: dict[int, list[T]] = {}
        self._order: list[int] = []
        # The earliest second's things, last one first.
        self._second = 0
        self._taken: list[T] = []
        self._count = 0

    def __len__(self) -> int:
        """Places taken, those of things that are not meant any more included."""
        return self._count

    def add(self, second: int, thing: T) -> None:
        """Puts a thing in. Its second is no earlier than those that were taken out."""
        self._count += 1
        if second in self._lists:
            self._lists[second].append(thing)
            return
        self._lists[second] = [thing]
        heapq.heappush(self._order, second)

    def take(self, *, until: int | None = None) -> tuple[int, T] | None:
        """Takes the earliest out, with its second; None if there is none, or none until then."""
        if not self._taken:
            if not self._order or (until is not None and self._order[0] > until):
                return None
            self._second = heapq.heappop(self._order)
            self._taken = self._lists.pop(self._second)
            self._taken.reverse()
        self._count -= 1
        return self._second, self._taken.pop()
