"""Until when each session is to be kept, as its clients asked. Pure.

A wish is a span that everybody who sees its record counts anew, so that it survives whoever
took it, and is never shorter than what was asked for.
"""

from dataclasses import dataclass

from kvplane_services.session.record import SessionRecord


@dataclass(frozen=True, slots=True)
class _Wish:
    number: int
    until: float


class Wishes:
    """The wishes of all sessions; times on the monotonic clock."""

    def __init__(self) -> None:
        self._wishes: dict[str, _Wish] = {}
        self._new: set[str] = set()

    def see(self, name: str, record: SessionRecord, now: float) -> None:
        """Takes in what a session's record says."""
        if not record.hints.keep_for:
            self.forget(name)
            return
        wish = self._wishes.get(name)
        if wish is None or wish.number != record.wish:
            self._wishes[name] = _Wish(record.wish, now + record.hints.keep_for)
            self._new.add(name)

    def forget(self, name: str) -> None:
        """Drops a session that is gone, or that nobody wants kept."""
        self._wishes.pop(name, None)
        self._new.discard(name)

    def is_new(self, name: str) -> bool:
        """Whether a session's wish is seen for the first time: told once."""
        new = name in self._new
        self._new.discard(name)
        return new

    def remaining(self, name: str, now: float) -> float:
        """For how long a session is to be kept still; zero or less: it is not."""
        wish = self._wishes.get(name)
        return 0.0 if wish is None else wish.until - now

    def kept(self, now: float) -> list[str]:
        """Sessions that are to be kept."""
        return [name for name, wish in self._wishes.items() if wish.until > now]

    def over(self, now: float) -> list[str]:
        """Sessions whose wish is over, though their record still has it."""
        return [name for name, wish in self._wishes.items() if wish.until <= now]
