"""Follows one table through its events, without losing it when the source starts over."""

from typing import Generic, TypeVar

from kvplane_services.store.ports import Event, Removed, Reset, Synced, Upserted

T = TypeVar("T")


class Tracked(Generic[T]):
    """The values of a table, by key.

    A source that starts over may be a plane that restarted with an empty memory and is
    about to hear from the engines again. What it does not name is therefore kept for
    `grace` seconds and dropped only then.
    """

    def __init__(self, *, grace: float) -> None:
        self._grace = grace
        self._values: dict[str, T] = {}
        self._unnamed: set[str] | None = None
        self._doubtful: dict[str, float] = {}
        self.synced = False

    def __len__(self) -> int:
        return len(self._values)

    def apply(self, event: Event[T], now: float) -> tuple[T | None, T | None]:
        """Takes an event in, and returns the value of its key before and after."""
        match event:
            case Upserted(key=key, value=value):
                before = self._values.get(key)
                self._values[key] = value
                self._settle(key)
                return before, value
            case Removed(key=key):
                self._settle(key)
                return self._values.pop(key, None), None
            case Reset():
                self._unnamed = set(self._values)
            case Synced():
                self.synced = True
                for key in self._unnamed or ():
                    self._doubtful.setdefault(key, now + self._grace)
                self._unnamed = None
        return None, None

    def lapse(self, now: float) -> list[T]:
        """Drops what the source did not name again in time, and returns it."""
        lapsed = [key for key, deadline in self._doubtful.items() if deadline <= now]
        for key in lapsed:
            del self._doubtful[key]
        return [self._values.pop(key) for key in lapsed]

    def _settle(self, key: str) -> None:
        self._doubtful.pop(key, None)
        if self._unnamed is not None:
            self._unnamed.discard(key)
