"""Who wants a lease kept, and until when."""

from kvplane_services.lease.model import Claim


class Claims:
    """The claims on one lease. A claim that ran out is gone, and was the lease's last use."""

    __slots__ = ("_last_use", "_until")

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._last_use = float("-inf")

    def add(self, holder: str, until: float, now: float) -> None:
        """Makes or renews a claim. It never gets shorter by that."""
        self._until[holder] = max(until, self._until.get(holder, until))
        self._last_use = max(self._last_use, now)

    def drop(self, holder: str, now: float) -> None:
        """Gives a claim up. Does nothing if there is none."""
        if self._until.pop(holder, now) > now:
            self._last_use = max(self._last_use, now)

    def holds(self, holder: str, now: float) -> bool:
        """Whether this holder has a claim."""
        return self._until.get(holder, now) > now

    def count(self, now: float) -> int:
        """How many claims stand."""
        self._prune(now)
        return len(self._until)

    def last_use(self, now: float) -> float:
        """When the lease was last wanted: now if it is, minus infinity if it never was."""
        self._prune(now)
        return now if self._until else self._last_use

    def until(self) -> float | None:
        """When the last claim runs out, or None if there is none."""
        return max(self._until.values(), default=None)

    def holders(self) -> tuple[str, ...]:
        """Who has a claim, by name."""
        return tuple(sorted(self._until))

    def standing(self, now: float) -> tuple[Claim, ...]:
        """The claims that stand, by holder."""
        self._prune(now)
        return tuple(Claim(holder, until - now) for holder, until in sorted(self._until.items()))

    def _prune(self, now: float) -> None:
        over = [holder for holder, until in self._until.items() if until <= now]
        for holder in over:
            self._last_use = max(self._last_use, self._until.pop(holder))
