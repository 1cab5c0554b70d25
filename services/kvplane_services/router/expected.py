"""Retentions that engines are about to report. Pure: takes `now`."""

from kvplane_services.router.remembered import Remembered
from kvplane_services.session.model import SessionKey


class ExpectedRetentions:
    """Remembers, per session, the turn whose retention was not reported yet.

    The client's next turn may overtake the engine's report of the last one. A session is
    expected for `duration` seconds at most, and given up after one wait in vain, so that an
    engine that retains nothing slows one turn down, not all.
    """

    def __init__(self, *, duration: float, memory: int) -> None:
        self._duration = duration
        self._turns: Remembered[SessionKey, tuple[str, float]] = Remembered(memory)

    def expect(self, key: SessionKey, decision_id: str, now: float) -> None:
        """Notes that the turn of this decision ended well on an engine that retains."""
        self._turns.put(key, (decision_id, now + self._duration))

    def of(self, key: SessionKey, now: float) -> str | None:
        """The decision whose retention is expected for the session."""
        turn = self._turns.get(key)
        return turn[0] if turn is not None and now < turn[1] else None

    def settle(self, key: SessionKey) -> None:
        """Notes that nothing is expected any more."""
        self._turns.forget(key)
