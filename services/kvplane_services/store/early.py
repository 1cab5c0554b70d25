"""What a process knows of a table before its watch tells it."""

import heapq
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvplane_services.store.model import Versioned

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Early(Generic[T]):
    """What a key was found to hold at a revision; None for nothing."""

    item: Versioned[T] | None
    revision: int


class EarlyValues(Generic[T]):
    """The newest of them by key: writes of this process, and what the store said to a refused one.

    Each stays until the watch has reached its revision, and is then part of what the watch told.
    """

    def __init__(self) -> None:
        self._by_key: dict[str, Early[T]] = {}
        # By revision, with some that were replaced since.
        self._order: list[tuple[int, int, str, Early[T]]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._by_key)

    def find(self, key: str) -> Early[T] | None:
        """What is known of a key ahead of the watch, if anything."""
        return self._by_key.get(key)

    def all(self) -> Mapping[str, Early[T]]:
        """Everything, as it is now."""
        return dict(self._by_key)

    def add(self, key: str, early: Early[T]) -> None:
        """Takes it in, unless something newer is known."""
        known = self._by_key.get(key)
        if known is not None and known.revision >= early.revision:
            return
        self._by_key[key] = early
        heapq.heappush(self._order, (early.revision, next(self._numbers), key, early))

    def reached(self, revision: int) -> None:
        """Drops what the watch has told."""
        while self._order and self._order[0][0] <= revision:
            _, _, key, early = heapq.heappop(self._order)
            if self._by_key.get(key) is early:
                del self._by_key[key]

    def drop(self, known: Mapping[str, Early[T]]) -> None:
        """Drops these, whatever their revisions, where they are still what is known."""
        for key, early in known.items():
            if self._by_key.get(key) is early:
                del self._by_key[key]
