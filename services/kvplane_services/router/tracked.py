"""Follows one table through its events, without losing it when the source loses some of it."""

from collections.abc import Callable
from typing import Generic, TypeVar

from kvplane_services.store.model import Event, Removed, Reset, Synced, Upserted

T = TypeVar("T")


class Tracked(Generic[T]):
    """The values of a table, by key.

    A source that starts over may be a plane that restarted with an empty memory and is about to
    hear from the engines again. A value that is removed while it was live may be one that the
    store lost, and that its owner puts back. What is not named for such a reason is kept for
    `grace` seconds and dropped only then.

    Args:
        grace: Seconds.
        over: Whether a value says of itself that it is over. Its removal is believed at once.

    """

    def __init__(self, *, grace: float, over: Callable[[T], bool]) -> None:
        self._grace = grace
        self._over = over
        self._values: dict[str, T] = {}
        self._unnamed: set[str] | None = None
        # Until when what was not named is kept. Added in order of time, as the grace is the same.
        self._doubtful: dict[str, float] = {}
        self.synced = False

    def __len__(self) -> int:
        return len(self._values)

    def apply(self, event: Event[T], now: float) -> tuple[T | None, T | None]:
        """Takes an event in, and returns the value of its key before and after.

        Both are None if nothing changes for now.
        """
        match event:
            case Upserted(key=key, value=value):
                before = self._values.get(key)
                self._values[key] = value
                self._settle(key)
                return before, value
            case Removed(key=key):
                return self._remove(key, now), None
            case Reset():
                self._unnamed = set(self._values)
            case Synced():
                self.synced = True
                for key in self._unnamed or ():
                    self._doubtful.setdefault(key, now + self._grace)
                self._unnamed = None
        return None, None

    def lapse(self, now: float, *, most: int) -> list[T]:
        """Drops what the source did not name again in time, and returns it.

        Args:
            now: The time.
            most: How many are dropped at most.

        """
        lapsed: list[T] = []
        while self._doubtful and len(lapsed) < most:
            key, deadline = next(iter(self._doubtful.items()))
            if deadline > now:
                break
            del self._doubtful[key]
            lapsed.append(self._values.pop(key))
        return lapsed

    def _remove(self, key: str, now: float) -> T | None:
        value = self._values.get(key)
        if value is None:
            return None
        if self._over(value):
            self._settle(key)
            return self._values.pop(key)
        self._doubtful.setdefault(key, now + self._grace)
        return None

    def _settle(self, key: str) -> None:
        self._doubtful.pop(key, None)
        if self._unnamed is not None:
            self._unnamed.discard(key)
